#!/usr/bin/env bash
# Uses our own binary as a client of any broker, even Apache Kafka: `fullbore.sh BOOTSTRAP`. The binary is in
# $FULLBORE_BIN. kcat reads records that our binary writes, and the other way round. The rest of the producer is tested
# in its crate. If $JARS has the jars of Kafka's tools, the lines of `groups` and `configs` are compared with those of
# the tools.
set -uo pipefail
bootstrap=$1 client=fullbore
. "$(dirname "$0")/cases.sh"
topic="fullbore-$$-$(date +%s)"
payload="one payload, the same in every record: $(seq -s ' ' 40)"
echo "$payload" >"$work/payload"

secured=(${TLS:+--command-config "$TLS"})
topics() { local action=$1; shift; "$FULLBORE_BIN" topics "$action" --bootstrap-server "$bootstrap" "${secured[@]}" "$@"; }
groups() { local action=$1; shift; "$FULLBORE_BIN" groups "$action" --bootstrap-server "$bootstrap" "${secured[@]}" "$@"; }
configs() { local action=$1; shift; "$FULLBORE_BIN" configs "$action" --bootstrap-server "$bootstrap" "${secured[@]}" "$@"; }
perf() { local action=$1; shift; "$FULLBORE_BIN" perf "$action" --bootstrap-server "$bootstrap" "${secured[@]}" "$@"; }

create() {
  has "^Created topic $topic\.$" "$(topics create --topic "$topic" --partitions 3 --replication-factor "$replicas" --config retention.ms=12345000)"
  refused 'already exists' topics create --topic "$topic"
  topics create --topic "$topic" --if-not-exists
}

describe() {
  has "^$topic$" "$(topics list)"
  local described; described=$(topics describe --topic "$topic")
  has "Topic: $topic.TopicId: [A-Za-z0-9_-]{22}.PartitionCount: 3.ReplicationFactor: $replicas.Configs: .*retention.ms=12345000" "$described"
  has "Partition: 2.Leader: [0-9]+.$replicated" "$described"
}

# Succeeds if the broker's topics have settings of the window (KIP-1269). The probe sets an invalid value, which every
# broker refuses. In a pipe, that failure would count (pipefail), so the output is stored first.
has_window() {
  [ -z "${OURS:-}" ] || return 0
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
  topics create --topic "$name" --partitions 1 --replication-factor "$replicas"
  eventually is_empty "$name" # with acks=0, a leader that does not know the topic yet returns no error
  has '^20000 records sent, [0-9.]+ records/sec' "$(perf produce --topic "$name" --num-records 20000 --payload-file "$work/payload" \
    --throughput -1 --command-property "$@")"
  eventually reads_back "$name" # with acks=0 the last records may still be on their way to the broker
}
is_empty() { same "$(kcat -q -b "$bootstrap" -Q -t "$1:0:-1")" "$1 [0] offset 0"; }
reads_back() {
  kcat -q -b "$bootstrap" -C -t "$1" -p 0 -o beginning -e -f '%o|%K|%s\n' >"$work/found" || return
  seq 0 19999 | sed "s/\$/|-1|$payload/" | cmp - "$work/found"
}

consume() { # reads records that kcat wrote with each codec of librdkafka, in one log
  local codec
  topics create --topic "$topic-consume" --partitions 1 --replication-factor "$replicas"
  for codec in none gzip snappy lz4 zstd; do
    seq -f 'some text, some text %g' 2000 | kcat -q -b "$bootstrap" -P -t "$topic-consume" -p 0 -z $codec
  done
  has ', 10000, ' "$(perf consume --topic "$topic-consume" --num-records 10000 --timeout 20000)"
}

# shape TEXT: replaces each number by 1. Keeps the number of digits after a decimal point, and the names of percentiles
shape() { python3 -c 'import re, sys
print(re.sub(r"\b\d+(?:\.(\d+))?\b", lambda n: "1" + ("." + "0" * len(n[1]) if n[1] else ""), sys.stdin.read()))' <<<"$1"; }

# like_theirs CLASS FLAG... -- OUR COMMAND...: succeeds if our lines differ from those of Kafka's tool only in numbers
like_theirs() {
  local flags=() class=$1 theirs; shift
  until [ "$1" = -- ]; do flags+=("$1"); shift; done; shift
  theirs=$(kafka "org.apache.kafka.tools.$class" --bootstrap-server "$bootstrap" "${secured[@]}" "${flags[@]}" 2>"$work/errors") ||
    { echo "$theirs"; cat "$work/errors"; return 1; }
  same "$(shape "$("$@" "${flags[@]}")")" "$(shape "$theirs")"
}

# Compares the summaries of a whole run and of the steady state of a producer. Also compares those of consumers that
# find fewer records than --num-records. The topic is large, because a run of less than a millisecond has no rate.
perf_lines() {
  local sending=(--topic "$topic-lines" --num-records 15000 --record-size 100 --throughput -1 --reporting-interval 60000) reading=(--topic "$topic-lines" --timeout 20000)
  topics create --topic "$topic-lines" --partitions 1 --replication-factor "$replicas"
  like_theirs ProducerPerformance "${sending[@]}" -- perf produce --wide
  like_theirs ProducerPerformance "${sending[@]}" --warmup-records 1000 --command-property linger.ms=0 acks=1 -- perf produce --wide
  like_theirs ConsumerPerformance "${reading[@]}" --num-records 50000 -- perf consume --wide
  like_theirs ConsumerPerformance "${reading[@]}" --num-records 50000 --hide-header --date-format HH:mm -- perf consume --wide
  like_theirs ConsumerPerformance --topic "$topic-lines" --num-records 5 --from-latest --timeout 1000 -- perf consume --wide
}

alter() { # adds partitions; a request to remove some is refused
  topics alter --topic "$topic" --partitions 5
  eventually described_as 'PartitionCount: 5' topics describe --topic "$topic"
  refused 'currently has 5 partition\(s\); 2 would not be an increase' topics alter --topic "$topic" --partitions 2
  refused 'does not exist' topics alter --topic "$topic-absent" --partitions 2
  same "$(topics alter --topic "$topic-absent" --partitions 2 --if-exists --json)" '{"altered":[]}'
}

described_as() { local pattern=$1 found; shift; found=$("$@") && has "$pattern" "$found"; }

is_json() { python3 -c 'import json, sys; json.load(sys.stdin)' <<<"$1" || { printf 'no JSON:\n%s\n' "$1"; return 1; }; }

settings() { # changes settings of a topic and of all brokers
  same "$(configs alter --topic "$topic" --add-config 'max.message.bytes=2000000,retention.ms=[54321000]')" "Completed updating config for topic $topic."
  eventually described_as '^  max.message.bytes=2000000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000000, DEFAULT_CONFIG:message.max.bytes=1048588' \
    configs describe --topic "$topic"
  is_json "$(configs describe --topic "$topic" --all --json)"
  configs alter --topic "$topic" --delete-config max.message.bytes
  eventually described_as '^  max.message.bytes=1048588 ' configs describe --topic "$topic" --all
  refused 'no.such.key' configs alter --topic "$topic" --add-config no.such.key=1
  refused 'retention.ms' configs alter --topic "$topic" --add-config retention.ms=soon
  refused "$topic-absent" configs alter --topic "$topic-absent" --add-config retention.ms=1
  configs alter --broker-defaults --add-config message.max.bytes=1500000
  eventually described_as '^  message.max.bytes=1500000 ' configs describe --entity-type brokers --entity-default
  configs alter --broker-defaults --delete-config message.max.bytes
}

first_group() { # waits for a coordinator that is being created
  has "^$topic-first +$topic +0 +0$" "$(groups reset-offsets --group "$topic-first" --topic "$topic:0" --to-earliest --execute)"
  groups delete --group "$topic-first"
}

members() { # describes a group with a member of librdkafka
  topics create --topic "$topic-read" --partitions 2 --replication-factor "$replicas"
  seq 50 | kcat -q -b "$bootstrap" -P -t "$topic-read" -p 0
  command kcat "${kcat_tls[@]}" -q -b "$bootstrap" -X auto.commit.interval.ms=100 -o beginning -G "$topic-group" "$topic-read" >"$work/read" 2>"$work/reader" &
  local reader=$!
  trap "kill $reader 2>/dev/null || :" EXIT
  eventually described_as "^$topic-group +$topic-read +0 +50 +50 +0 +rdkafka-[^ ]+ +/[0-9.]+ +rdkafka$" groups describe --group "$topic-group"
  has "^$topic-group .* range +Stable +1$" "$(groups describe --group "$topic-group" --state)"
  has " rdkafka +2 +- +$topic-read:0,1 " "$(groups describe --group "$topic-group" --members --verbose)"
  has "^$topic-group +Classic +Stable$" "$(groups list --type --state stable)"
  local mode
  for mode in --offsets --members --state; do is_json "$(groups describe --group "$topic-group" $mode --json)"; done
  theirs ConsumerGroupCommand --describe --group "$topic-group" -- groups describe --group "$topic-group"
  theirs ConsumerGroupCommand --describe --group "$topic-group" --members --verbose -- groups describe --group "$topic-group" --members --verbose
  refused 'is inactive, but the current state is Stable' groups reset-offsets --group "$topic-group" --all-topics --to-latest
  refused 'not empty; stop its consumers first' groups delete --group "$topic-group"
  refused 'Stop the group' groups delete-offsets --group "$topic-group" --topic "$topic-read"
  kill $reader; wait $reader || :
  eventually described_as " Empty +0$" groups describe --group "$topic-group" --state
}

member_of_the_consumer_protocol() { # describes a group (KIP-848) with Kafka's own consumer
  local group=$topic-848 protocol=(--command-property group.protocol=consumer)
  "${jvm[@]}" org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$bootstrap" \
    "${secured[@]}" --topic "$topic" --group "$group" "${protocol[@]}" >"$work/read" 2>"$work/reader" &
  local reader=$!
  trap "kill $reader 2>/dev/null || :" EXIT
  stable() { described_as "^$group .* uniform +Stable +([0-9]+) +\1 +1$" groups describe --group "$group" --state --verbose; }
  eventually stable || eventually stable # tried twice, because a JVM on a busy machine may need more than a minute
  has "^$group +Consumer +Stable$" "$(groups list --type consumer --state)"
  local mode
  for mode in --members --state --offsets; do
    eventually theirs ConsumerGroupCommand --describe --group "$group" $mode --verbose -- groups describe --group "$group" $mode --verbose
  done
}

offsets() { # resets offsets of a group without members
  local reset=(reset-offsets --group "$topic-group" --topic "$topic-read:0")
  has "^$topic-group +$topic-read +0 +0$" "$(groups "${reset[@]}" --to-earliest --dry-run)"
  theirs ConsumerGroupCommand --reset-offsets --group "$topic-group" --topic "$topic-read:0" --shift-by -20 --dry-run -- groups "${reset[@]}" --shift-by -20 --dry-run
  groups "${reset[@]}" --shift-by -20 --execute
  has "^$topic-group +$topic-read +0 +30 +50 +20 +- +- +-$" "$(groups describe --group "$topic-group" 2>/dev/null)"
  groups "${reset[@]}" --to-current --export --dry-run >"$work/plan.csv"
  same "$(cat "$work/plan.csv")" "$topic-read,0,30"
  groups "${reset[@]}" --to-datetime 2000-01-01T00:00:00.000 --execute
  same "$(groups "${reset[@]}" --to-datetime 1960-01-01T00:00:00.000 --dry-run 2>&1)" "$(groups "${reset[@]}" --to-earliest --dry-run 2>&1)"
  groups reset-offsets --group "$topic-group" --from-file "$work/plan.csv" --execute
  has "^$topic-group +$topic-read +0 +30 " "$(groups describe --group "$topic-group" 2>/dev/null)"
  theirs ConsumerGroupCommand --describe --group "$topic-group" --state -- groups describe --group "$topic-group" --state
  has '^Request succeeded for deleting offsets' "$(groups delete-offsets --group "$topic-group" --topic "$topic-read")"
  same "$(groups delete --group "$topic-group")" "Deletion of requested consumer groups ('$topic-group') was successful."
  refused 'does not exist' groups describe --group "$topic-group"
}

# theirs CLASS FLAG... -- OUR COMMAND...: checks that Kafka's tool prints the same lines, and ignores trailing blanks
theirs() {
  [ -n "${JARS:-}" ] || return 0
  local flags=() class=$1; shift
  until [ "$1" = -- ]; do flags+=("$1"); shift; done; shift
  case $class in ConsumerGroupCommand) class=org.apache.kafka.tools.consumer.group.$class ;; *) class=kafka.admin.$class ;; esac
  local ours
  ours=$("$@" 2>"$work/errors") && [ -n "$ours" ] || { echo "fails or prints nothing: $*"; cat "$work/errors"; return 1; }
  same "$ours" "$(kafka "$class" --bootstrap-server "$bootstrap" "${secured[@]}" "${flags[@]}" \
    2>/dev/null | sed 's/ *$//')"
}

same_settings() { # compares the output of our tool with that of Kafka's, for the same topic and brokers
  configs alter --topic "$topic" --add-config retention.ms=54321000
  theirs ConfigCommand --describe --topic "$topic" -- configs describe --topic "$topic"
  theirs ConfigCommand --describe --topic "$topic" --all -- configs describe --topic "$topic" --all
  theirs ConfigCommand --describe --entity-type brokers -- configs describe --entity-type brokers
}

gone() { local listed; listed=$(topics list) || return; lacks "^$topic" "$listed"; }

delete() {
  topics delete --topic "$topic"
  refused 'does not exist' topics delete --topic "$topic"
  topics delete --topic "$topic-.*" --yes
  eventually gone
}

check 'topics create' create
check 'topics list, describe' describe
if has_window; then check 'topics create with a window of its own (KIP-1269)' window; else skip 'KIP-1269: unknown to this broker'; fi
check 'topics alter' alter
check 'topics create with a bad config is refused' refused 'no.such.key' topics create --topic "$topic-bad" --config no.such.key=1
for codec in none gzip snappy lz4 zstd; do check "perf produce, idempotent, $codec" produce compression.type=$codec; done
for acks in 0 1; do check "perf produce, acks=$acks" produce acks=$acks enable.idempotence=false; done
check 'perf consume' consume
[ -z "${JARS:-}" ] || check "perf produce, perf consume print the lines of Kafka's tools" perf_lines
check 'configs alter, describe' settings
[ -z "${JARS:-}" ] || check "configs describe prints the lines of Kafka's tool" same_settings
check 'groups: the first group of a cluster' first_group
check 'groups: a group with a member' members
[ -z "${JARS:-}" ] || check 'groups: a group of the consumer protocol' member_of_the_consumer_protocol
check 'groups: reset-offsets, delete-offsets, delete' offsets
. "$(dirname "$0")/pipes.sh"
check 'topics delete' delete
summary
