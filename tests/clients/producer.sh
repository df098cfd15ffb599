#!/usr/bin/env bash
# Runs the producer library's own tests against a running broker, even Apache Kafka: `producer.sh BOOTSTRAP`.
# `producer.sh --killed` runs the test that starts a Fullbore broker (FULLBORE_BIN) and kills it under load. To run this
# test with another broker, set `FULLBORE_TEST_RESTART` (`crates/producer/tests/kafka.rs`). The last line is
# `N passed, N failed`.
set -uo pipefail
cd "$(dirname "$0")/../.."
killed=a_broker_that_is_killed_under_load_has_every_acknowledged_record_once

# tests FILTER...: runs tests and prints their names, and their sum at the end
tests() {
  local out
  out=$(RUST_BACKTRACE=0 tests/checked test -q --workspace --test kafka -- --test-threads 1 --format pretty --show-output "$@" 2>&1)
  sed -nE 's/^test (.*) \.\.\. ok$/ok   producer: \1/p; s/^test (.*) \.\.\. FAILED$/FAIL producer: \1/p' <<<"$out"
  read -r passed failed < <(sed -nE 's/^test result: .* ([0-9]+) passed; ([0-9]+) failed;.*/\1 \2/p' <<<"$out")
  # A skipped test counts as a failure here, and so does a run that has no test.
  if [ -z "${passed:-}" ] || [ "$passed" = 0 ] || [ "$failed" != 0 ] || grep -q '^skipped' <<<"$out"; then
    tail -40 <<<"$out"
    failed=$((${failed:-0} > 0 ? failed : 1))
  fi
  echo "${passed:-0} passed, $failed failed"
  [ "$failed" = 0 ]
}

if [ "$1" != --killed ]; then
  FULLBORE_TEST_KAFKA=$1 tests --skip $killed
  exit
fi

binary=${FULLBORE_BIN:-$PWD/target/release/fullbore}
temp=$(mktemp -d)
trap '[ ! -e "$temp/pid" ] || kill -9 "$(cat "$temp/pid")"; rm -rf "$temp"' EXIT
trap 'exit 130' INT TERM
address=127.0.0.1:$(tests/clients/free-ports 1)
cat >"$temp/restart" <<R
listens() { (exec 3<>/dev/tcp/${address/://}) 2>/dev/null; }
[ ! -e "$temp/pid" ] || kill -9 "\$(cat "$temp/pid")"
while listens; do sleep 0.05; done
"$binary" serve --listen $address --data-dir "$temp/data" --set fullbore.admin.listener= >>"$temp/broker" 2>&1 &
echo \$! >"$temp/pid"
until listens; do
  kill -0 "\$(cat "$temp/pid")" || { cat "$temp/broker"; exit 1; }
  sleep 0.05
done
R
bash "$temp/restart" || exit 1
FULLBORE_TEST_KAFKA=$address FULLBORE_TEST_RESTART="bash $temp/restart" tests $killed
