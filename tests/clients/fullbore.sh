#!/usr/bin/env bash
# Our own binary as a client of any broker, Apache Kafka too: `fullbore.sh BOOTSTRAP`, with the binary in $FULLBORE_BIN.
# What it writes is read by kcat, what kcat writes is read by it; the rest of the producer is tested in its crate.
set -uo pipefail
bootstrap=$1 client=fullbore
. "$(dirname "$0")/cases.sh"
topic="fullbore-$$-$(date +%s)"
payload="one payload, the same in every record: $(seq -s ' ' 40)"
echo "$payload" >"$work/payload"

secured=(${TLS:+--command-config "$TLS"})
topics() { local action=$1; shift; "$FULLBORE_BIN" topics "$action" --bootstrap-server "$bootstrap" "${secured[@]}" "$@"; }
perf() { local action=$1; shift; "$FULLBORE_BIN" perf "$action" --bootstrap-server "$bootstrap" "${secured[@]}" "$@"; }

create() {
  has "^Created topic $topic\.$" "$(topics create --topic "$topic" --partitions 3 --replication-factor 1 --config retention.ms=12345000)"
  refused 'already exists' topics create --topic "$topic"
  topics create --topic "$topic" --if-not-exists
}

describe() {
  has "^$topic$" "$(topics list)"
  local described; described=$(topics describe --topic "$topic")
  has "Topic: $topic.TopicId: [A-Za-z0-9_-]{22}.PartitionCount: 3.ReplicationFactor: 1.Configs: .*retention.ms=12345000" "$described"
  has 'Partition: 2.Leader: ([0-9]+).Replicas: \1.Isr: \1' "$described"
}

has_window() { # the answer is kept first: with pipefail, the refusal would be the pipe's outcome, whatever it says
  local told; told=$(topics create --topic "$topic-probe" --config producer.state.batches.to.retain=x 2>&1)
  ! grep -q 'nknown topic config' <<<"$told"
}

window() {
  topics create --topic "$topic-window" --config producer.state.batches.to.retain=64
  has 'Configs: .*producer.state.batches.to.retain=64' "$(topics describe --topic "$topic-window")"
  refused 'producer.state.batches.to.retain=4: must be between 5 and 10000' topics create --topic "$topic-bad" --config producer.state.batches.to.retain=4
  topics delete --topic "$topic-window"
}

produce() { # produce PROPERTY...: kcat finds each record once, in order
  local name="$topic-$*"; name=${name//[ =.]/-}
  topics create --topic "$name" --partitions 1 --replication-factor 1
  has '^20000 records sent, [0-9.]+ records/sec' "$(perf produce --topic "$name" --num-records 20000 --payload-file "$work/payload" \
    --throughput -1 --command-property "$@")"
  kcat -q -b "$bootstrap" -C -t "$name" -p 0 -o beginning -e -f '%o|%K|%s\n' >"$work/found"
  seq 0 19999 | sed "s/\$/|-1|$payload/" | cmp - "$work/found"
}

consume() { # what kcat wrote, with each codec of librdkafka in one log
  local codec
  topics create --topic "$topic-consume" --partitions 1 --replication-factor 1
  for codec in none gzip snappy lz4 zstd; do
    seq -f 'some text, some text %g' 2000 | kcat -q -b "$bootstrap" -P -t "$topic-consume" -p 0 -z $codec
  done
  has ', 10000, ' "$(perf consume --topic "$topic-consume" --num-records 10000 --timeout 20000)"
}

gone() { local listed; listed=$(topics list) || return; lacks "^$topic" "$listed"; }

delete() {
  topics delete --topic "$topic"
  refused 'does not exist' topics delete --topic "$topic"
  topics delete --topic "$topic-.*"
  eventually gone
}

check 'topics create' create
check 'topics list, describe' describe
! has_window || check 'topics create with a window of its own (KIP-1269)' window
check 'topics create with a bad config is refused' refused 'no.such.key' topics create --topic "$topic-bad" --config no.such.key=1
for codec in none gzip snappy lz4 zstd; do check "perf produce, idempotent, $codec" produce compression.type=$codec; done
for acks in 0 1; do check "perf produce, acks=$acks" produce acks=$acks enable.idempotence=false; done
check 'perf consume' consume
check 'topics delete' delete
summary
