#!/usr/bin/env bash
# Where a client certificate is required, nobody without one is let in: `uncertified.sh BOOTSTRAP`, with the binary in $FULLBORE_BIN and the
# properties of a client without in $TLS.
set -uo pipefail
bootstrap=$1 client=uncertified
. "$(dirname "$0")/cases.sh"
check 'nobody without a certificate' refused 'requires a client certificate' \
  "$FULLBORE_BIN" topics list --bootstrap-server "$bootstrap" --command-config "$TLS"
summary
