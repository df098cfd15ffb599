#!/usr/bin/env bash
# Committed offsets in `__consumer_offsets`: `offsets.sh BOOTSTRAP`, with the jars of Kafka's tools in $JARS. Clients
# commit and delete offsets. Afterwards Kafka's formatter prints the topic, and Kafka's own coordinator replays it
# record by record. Both must have exactly the offsets that the broker returns. The script works against Apache Kafka as
# well.
set -uo pipefail
bootstrap=$1 client=offsets
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cases.sh"
run="offsets-$$-$(date +%s)"

# tool CLASS ARGS...: runs a tool, and prints the output of a failing one to stderr, because a command substitution
# would hide it on stdout
tool() {
  local out status
  out=$(kafka "$@" 2>"$work/err") && status=0 || status=$?
  [ $status = 0 ] || { echo "$out" >&2; cat "$work/err" >&2; return $status; }
  echo "$out"
}
offsets() { tool CommittedOffsets "$bootstrap" "$1" "$run"; }
topics() { tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" "$@"; }
groups() { tool org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$bootstrap" "$@"; }

commit() {
  offsets commit
  groups --delete --group "$run-deleted"
  groups --delete-offsets --group "$run-alone" --topic "$run-a:1"
  groups --delete-offsets --group "$run-none" --topic "$run-a" --topic "$run-b"
  offsets patterns
}

listed() {
  has '^__consumer_offsets$' "$(topics --list)"
  has "^$run-a$" "$(topics --list --exclude-internal)"
  lacks '^__' "$(topics --list --exclude-internal)"
  lacks '^Topic: __' "$(topics --describe --exclude-internal)"
}

# formatted MS: prints "group topic partition offset topic-id" for the last record of each key, as Kafka's formatter
# shows it. The formatter ends after MS ms without a record. On a busy machine this may be before its first record.
formatted() {
  # The tool's logger would print the timeout among the records.
  "${jvm[@]}" -Dlog4j2.level=OFF org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$bootstrap" --topic __consumer_offsets --from-beginning \
    --formatter org.apache.kafka.tools.consumer.OffsetsMessageFormatter --timeout-ms "$1" |
    jq -rs --arg run "$run" 'reduce .[] as $record ({}; .[$record.key | tojson] = $record) | .[]
      | select(.value != null) | .value.data as $committed | .key.data | select(.group | startswith($run))
      | "\(.group) \(.topic) \(.partition) \($committed.offset) \($committed.topicId)"' | LC_ALL=C sort
}

# described: prints lines of the same form from the broker's responses
described() {
  topics --describe --topic "$run-.*" | sed -n 's/^Topic: \([^\t]*\)\tTopicId: \([^\t]*\)\t.*/\1 \2/p' >"$work/ids"
  groups --describe --all-groups --offsets >"$work/groups"
  awk -v run="$run" 'NR == FNR { id[$1] = $2; next } index($1, run) == 1 && $4 != "-" { print $1, $2, $3, $4, id[$2] }' "$work/ids" "$work/groups" |
    LC_ALL=C sort
}

formatter() {
  local described formatted patience_ms
  described=$(described)
  same "$(wc -l <<<"$described")" 17 # 4 offsets less 1 deleted, 4, and 5 of each of 2 groups with members
  for patience_ms in 10000 40000; do
    formatted=$(formatted $patience_ms)
    [ "$formatted" != "$described" ] || break
  done
  same "$formatted" "$described"
}

coordinator() {
  local replayed; replayed=$(offsets replay)
  same "$replayed" "$(offsets fetch)"
  same "$(wc -l <<<"$replayed")" 17
}

check 'offsets of several groups, some of them deleted; consumers with patterns' commit
check 'kafka-topics --exclude-internal' listed
check 'kafka-console-consumer with OffsetsMessageFormatter, kafka-consumer-groups' formatter
check "Kafka's GroupCoordinatorShard replays the topic" coordinator
summary
