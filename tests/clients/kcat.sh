#!/usr/bin/env bash
# Runs kcat against a broker: `kcat.sh BOOTSTRAP [NAME]`. NAME appears in the lines and topics, to distinguish two
# versions of librdkafka. If LIBRDKAFKA is set, kcat must have that version. The cases read by partition and offset
# only, without groups. A topic is created by producing to it, as users of kcat do.
set -uo pipefail
bootstrap=$1 client=${2:-kcat}
. "$(dirname "$0")/cases.sh"
run="$client-$$-$(date +%s)"

k() { kcat -b "$bootstrap" -q -X topic.metadata.refresh.fast.interval.ms=50 "$@"; }
read_all() { k -C -t "$1" -p 0 -o "${2:-beginning}" -e -f '%o|%K|%k|%S|%s|%h\n' "${@:3}"; }

# produce ACKS CODEC [option...]: writes records and reads them back. Two have an empty key or value, which kcat sends
# as null because of -Z. Further records make the batch worth compressing.
produce() {
  local topic="$run-$1-$2-$#" i
  { printf 'k:v\n:no key\ntombstone:\n'; for i in $(seq 200); do echo "key-$i:some text some text $i"; done; } >"$work/in"
  eventually known "$topic"
  k -P -t "$topic" -p 0 -K: -Z -X acks="$1" -z "$2" -H h=1 -H h=2 -H null -H empty= "${@:3}" <"$work/in"
  awk -F: '{ k = $1; v = $2; print NR - 1 "|" (k == "" ? -1 : length(k)) "|" k "|" (v == "" ? -1 : length(v)) "|" v "|h=1,h=2,null=NULL,empty=" }' \
    "$work/in" >"$work/expected"
  eventually reads_back "$topic" # without acks=all a record may be missing on some replicas
}
# The metadata request creates the topic. With acks=0, a leader that does not know the topic yet would report no error.
known() {
  local address
  for address in ${bootstrap//,/ }; do
    kcat -b "$address" -q -L -J -t "$1" | jq -e '.topics[0].partitions[0].leader >= 0' >/dev/null || return
  done
}
reads_back() { read_all "$1" | diff - "$work/expected"; }

big() {
  head -c 900000 /dev/urandom >"$work/big"
  k -P -t "$run-big" -p 0 -z "$1" "$work/big"
  k -C -t "$run-big" -p 0 -o -1 -c 1 -f %s | cmp - "$work/big"
}

too_big() {
  head -c 1500000 /dev/urandom >"$work/too-big"
  refused 'Message size too large' kcat -b "$bootstrap" -P -t "$run-too-big" -p 0 -X message.max.bytes=4000000 "$work/too-big"
  echo after | k -P -t "$run-too-big" -p 0
  same "$(read_all "$run-too-big")" '0|-1||5|after|'
}

offsets() {
  local topic="$run-offsets" i middle stamps
  for i in 0 1 2 3; do echo "v$i" | k -P -t "$topic" -p 0; done
  stamps=($(k -C -t "$topic" -p 0 -o beginning -e -f '%T\n'))
  middle=${stamps[2]}
  same "$(read_all "$topic" 2)" $'2|-1||2|v2|\n3|-1||2|v3|'
  same "$(read_all "$topic" -1)" '3|-1||2|v3|'
  same "$(read_all "$topic" "s@$middle")" "$(read_all "$topic" 2)"
  same "$(k -C -t "$topic" -p 0 -o "s@${stamps[0]}" -o "e@$middle" -f '%s ')" 'v0 v1 '
  same "$(k -Q -t "$topic:0:$middle")" "$topic [0] offset 2"
  same "$(k -Q -t "$topic:0:-1")" "$topic [0] offset 4"
  same "$(k -Q -t "$topic:0:-2")" "$topic [0] offset 0"
}

tail_wakes() { # a record that is written after the consumer has sent a long poll of 30 s ends the poll
  local topic="$run-tail"
  echo old | k -P -t "$topic" -p 0
  k -C -t "$topic" -p 0 -o end -c 1 -f '%o %s' -X fetch.wait.max.ms=30000 -d fetch >"$work/tail" 2>"$work/fetches" & local reader=$!
  eventually grep -q "Fetch topic $topic \[0\] at offset 1 " "$work/fetches"
  local started=$SECONDS
  echo new | k -P -t "$topic" -p 0
  wait $reader
  same "$(cat "$work/tail")" '1 new'
  [ $((SECONDS - started)) -lt 20 ] || { echo "the long poll slept on"; return 1; }
}

transaction() { # kcat commits the transaction at the end of its input
  echo x | k -P -t "$run-transaction" -p 0 -X transactional.id="$run"
}

metadata() {
  echo x | k -P -t "$run-meta" -p 0
  eventually listed
}
listed() { # the metadata has the brokers, the controller, and the topic's leader and replicas
  local found; found=$(k -L -J) || return
  jq -e --arg topic "$run-meta" --arg at "${bootstrap%%,*}" --argjson replicas "${REPLICAS:-1}" '
    (.brokers | any(.name == $at)) and (.controllerid as $c | .brokers | any(.id == $c)) and
    (.topics[] | select(.topic == $topic) | .partitions[0] | .leader >= 0 and (.replicas | length) == $replicas and (.isrs | length) == $replicas)' <<<"$found"
}

[ -z "${LIBRDKAFKA:-}" ] || check "librdkafka is $LIBRDKAFKA" has "librdkafka $LIBRDKAFKA " "$(command kcat -V)"
check 'metadata' metadata
for codec in none gzip snappy lz4 zstd; do
  for acks in 0 1 all; do check "produce acks=$acks $codec" produce $acks $codec; done
  check "produce idempotent $codec" produce all $codec -X enable.idempotence=true
done
check 'produce 900 KB, none' big none
check 'produce 900 KB, zstd' big zstd
check 'produce above message.max.bytes is refused' too_big
[ -n "${DISKLESS:-}" ] || check 'a transaction is committed' transaction
check 'consume from offsets and times, query offsets' offsets
check 'consume at the end wakes up for a new record' tail_wakes
check 'consume beyond the end is refused' refused 'Offset out of range' k -C -t "$run-meta" -p 0 -o 1000 -e -X auto.offset.reset=error
check 'consume of a missing topic is refused' refused 'Unknown topic' k -C -t "$run-absent" -p 0 -e
summary
