# Sourced by the shell clients. `check NAME COMMAND...` runs one case and prints its line, and `summary` ends the run. A
# case is a function or command that passes if it exits with 0. Its output is shown only if it fails.

# If TLS names a file of Kafka's client properties, the clients use TLS.

# tls KEY: prints a property in the file TLS
tls() { sed -n "s/^$1=//p" "${TLS:-/dev/null}"; }
# The properties in the file TLS, under librdkafka's names, for kcat.
kcat_tls=()
if [ -n "${TLS:-}" ]; then
  kcat_tls=(-X security.protocol=SSL -X "ssl.ca.location=$(tls ssl.truststore.location)")
  identity=$(tls ssl.keystore.location)
  [ -z "$identity" ] || kcat_tls+=(-X "ssl.certificate.location=$identity" -X "ssl.key.location=$identity")
fi
kcat() { command kcat "${kcat_tls[@]}" "$@"; }

# The command that starts a JVM with the jars in $JARS: "${jvm[@]}" CLASS ARGS... A tool spends most of its time on the
# start of its JVM. An archive of loaded classes (`archive`) saves half of this time, if `all` has made one from the
# same jars. Logging is off, because a warning about the archive would be in the tool's output.
jvm=(java -Xshare:auto -XX:SharedArchiveFile="${JARS:-}.jsa" -Xlog:disable -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp "${JARS:-}/*")

# How many replicas the topics have, and a pattern for a line of `describe` in which all these replicas are in sync.
replicas=${REPLICAS:-1}
replicated="Replicas: ([0-9]+(,[0-9]+){$((replicas - 1))}).Isr: [0-9]+(,[0-9]+){$((replicas - 1))}(\s|$)"

work=$(mktemp -d) tools=''
trap '[ -z "$tools" ] || kill "$tools"; rm -rf "$work"' EXIT

# Runs all of a client's tools that end by themselves in one JVM, one after another (java/Tools.java). The JVM ends with
# this shell.
if [ -n "${JARS:-}" ]; then
  mkfifo "$work/asked" "$work/answered"
  exec {asked}<>"$work/asked" {answered}<>"$work/answered"
  "${jvm[@]}" Tools <"$work/asked" >"$work/answered" {asked}>&- {answered}>&- &
  tools=$!
fi

# kafka CLASS ARGS...: runs one of Kafka's tools, with its output on this shell's output
kafka() {
  local status='' part me=$BASHPID
  (printf '%s\0' "$me" $# "$@" >&"$asked") # in a subshell, since this shell's own output must not be redirected
  until read -rt 1 -u "$answered" part; do
    status+=$part # `read` may have timed out in the middle of the line
    kill -0 "$tools" || { echo 'the JVM of the tools ended' >&2; return 1; }
  done
  return "$status$part"
}

# tool CLASS ARGS...: the same as `kafka`, but prints the output of a failing tool to stderr, because a command
# substitution would hide it on stdout
tool() {
  local out status
  out=$(kafka "$@") && status=0 || status=$?
  [ $status = 0 ] || { echo "$out" >&2; return $status; }
  echo "$out"
}

passed=0 failed=0

check() {
  local name=$1 out; shift
  # In a subshell, -e ends the case at its first command that fails. Within an `if`, bash would ignore -e.
  out=$(set -e; "$@" 2>&1 </dev/null)
  if [ $? = 0 ]; then
    passed=$((passed + 1)); echo "ok   $client: $name"
  else
    failed=$((failed + 1)); echo "FAIL $client: $name: $(tail -c 600 <<<"$out")"
  fi
}

# skip WHAT: prints that a case is left out, because the broker does not support it. No case is left out for Fullbore
# (OURS).
skip() { echo "skip $client: $1"; }

# same FOUND EXPECTED: succeeds if the two texts are equal
same() { [ "$1" = "$2" ] || { printf 'found:\n%s\nexpected:\n%s\n' "$1" "$2"; return 1; }; }

# has PATTERN TEXT: succeeds if the text matches an extended regular expression
has() { grep -qE -- "$1" <<<"$2" || { printf 'no %s in:\n%s\n' "$1" "$2"; return 1; }; }

# lacks PATTERN TEXT: succeeds if no line matches; `! grep` would not end a case, because -e ignores negated commands
lacks() { if grep -iE -- "$1" <<<"$2"; then return 1; fi; }

# refused PATTERN COMMAND...: succeeds if the command fails and its output matches the pattern
refused() {
  local pattern=$1 out; shift
  if out=$("$@" 2>&1); then printf 'accepted:\n%s\n' "$out"; return 1; fi
  has "$pattern" "$out"
}

# eventually COMMAND...: retries the command for a minute until it succeeds, because Apache Kafka answers a deletion
# before every list shows it
eventually() {
  local until=$((SECONDS + 60))
  until "$@" >/dev/null; do
    [ $SECONDS -lt $until ] || { "$@"; return 1; }
  done
}

summary() { echo "$passed passed, $failed failed"; [ "$failed" = 0 ]; }
