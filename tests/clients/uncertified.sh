#!/usr/bin/env bash
# Checks that a listener with a required client certificate refuses other clients: `uncertified.sh BOOTSTRAP`, with the
# binary in $FULLBORE_BIN and the properties of a client without a certificate in $TLS.
set -uo pipefail
bootstrap=$1 client=uncertified
. "$(dirname "$0")/cases.sh"
check 'client without a certificate is refused' refused 'requires a client certificate' \
  "$FULLBORE_BIN" topics list --bootstrap-server "$bootstrap" --command-config "$TLS"
summary
