#!/usr/bin/env bash
# Checks that a listener which requires client certificates refuses other clients: `uncertified.sh BOOTSTRAP`. The
# binary is in $FULLBORE_BIN, and $TLS has the properties of a client without a certificate.
set -uo pipefail
bootstrap=$1 client=uncertified
. "$(dirname "$0")/cases.sh"
check 'client without a certificate is refused' refused 'requires a client certificate' \
  "$FULLBORE_BIN" topics list --bootstrap-server "$bootstrap" --command-config "$TLS"
summary
