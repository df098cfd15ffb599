#!/usr/bin/env bash
# Kafka's command-line tools and ours side by side while a broker of the cluster is missing: `cluster.sh BOOTSTRAP`. The
# jars of Kafka's tools are in $JARS, a Python with confluent-kafka is $PYTHON, and the data of brokers 1 to 3 is in
# $DATA_DIR. $ONE_BROKER kills and starts a broker (`one-broker`). Each case continues from the state that the previous
# one has left.
set -uo pipefail
bootstrap=$1 client=cluster
here=$(cd "$(dirname "$0")" && pwd)
. "$here/cases.sh"
topic="cluster-$$-$(date +%s)"
one_broker=${ONE_BROKER:-$here/one-broker}

topics() { tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" "$@"; }
groups() { tool org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server "$bootstrap" "$@"; }
configs() { tool kafka.admin.ConfigCommand --bootstrap-server "$bootstrap" "$@"; }
elect() { tool org.apache.kafka.tools.LeaderElectionCommand --bootstrap-server "$bootstrap" --election-type "$@"; }
log_dirs() { tool org.apache.kafka.tools.LogDirsCommand --bootstrap-server "$bootstrap" --describe "$@" | tail -1; }
ours() { local what=$1 action=$2; shift 2; "$FULLBORE_BIN" "$what" "$action" --bootstrap-server "$bootstrap" "$@"; }
write() { seq "$2" "$3" | kcat -q -b "$bootstrap" -P -t "$1" -X enable.idempotence=true; } # write TOPIC FIRST LAST
read_all() { kcat -q -b "$bootstrap" -C -t "$1" -o beginning -e -f '%s\n' | sort -n; }

# wrong FLAG TOPIC COUNT: succeeds if, with the flag, both tools list the same COUNT partitions of the topic. Our tool
# is faster and runs first. If it lists another number, Kafka's tool does not run.
wrong() {
  local ours; ours=$(ours topics describe "--$1" --topic "$2" | sed 's/[[:space:]]*$//')
  same "$(grep -c Partition: <<<"$ours")" "$3" || return
  same "$(topics --describe "--$1" --topic "$2" | sed 's/[[:space:]]*$//')" "$ours"
}
nothing_wrong() {
  local flag
  for flag in under-replicated-partitions under-min-isr-partitions at-min-isr-partitions unavailable-partitions; do wrong $flag "$topic" 0 || return; done
}
placed() { has "$2(\s|\$)" "$(topics --describe --topic "$1")"; }
led() { has "Partition: ${3:-0}.Leader: $2" "$(topics --describe --topic "$1")"; } # led TOPIC LEADER [PARTITION]

create() {
  topics --create --topic "$topic" --partitions 6 --config min.insync.replicas=2
  topics --create --topic "$topic-alone" --replica-assignment 3 --config min.insync.replicas=1
  topics --create --topic "$topic-pair" --replica-assignment 2:3 --config min.insync.replicas=1
  has 'PartitionCount: 6.ReplicationFactor: 3' "$(topics --describe --topic "$topic")"
  eventually nothing_wrong
  write "$topic" 1 600
  write "$topic-alone" 1 10
  write "$topic-pair" 1 10
}

known_groups() { groups --list | grep "^$topic-group" | sort; }
set_offsets() { # sets the offsets of groups that have different coordinators, in a topic of one partition
  local i
  for i in $(seq 10 21); do ours groups reset-offsets --group "$topic-group-$i" --topic "$topic-pair:0" --to-offset 1 --execute; done
  same "$(known_groups)" "$(seq -f "$topic-group-%g" 10 21)"
  local coordinators; coordinators=$(groups --describe --all-groups --state | grep "^$topic-group" | grep -oE '\([1-3]\)' | sort -u | wc -l)
  [ "$coordinators" -gt 1 ]
}
have_offsets() { # Kafka's tool prints the offsets of all these groups, and both tools list the groups
  local i described
  same "$(known_groups)" "$(seq -f "$topic-group-%g" 10 21)"
  same "$(ours groups list | grep "^$topic-group" | sort)" "$(seq -f "$topic-group-%g" 10 21)"
  described=$(groups --describe --all-groups)
  for i in $(seq 10 21); do has "^$topic-group-$i +$topic-pair +0 +1 " "$described"; done
}

missing() {
  "$one_broker" kill 3
  eventually wrong under-replicated-partitions "$topic" 6
  wrong at-min-isr-partitions "$topic" 6
  wrong under-min-isr-partitions "$topic" 0
  wrong unavailable-partitions "$topic" 0
  eventually wrong unavailable-partitions "$topic-alone" 1
  wrong under-min-isr-partitions "$topic-alone" 1
  led "$topic-alone" none
  lacks 'Leader: (3|none)|Isr: [0-9,]*3' "$(topics --describe --topic "$topic")"
  write "$topic" 601 900
  same "$(read_all "$topic")" "$(seq 900)"
  same "$(log_dirs --topic-list "$topic" | jq -c '[.brokers[].broker] | sort')" '[1,2]'
}

created_meanwhile() { # a topic is created with a replica on the missing broker
  topics --create --topic "$topic-meanwhile" --partitions 3 --replication-factor 3
  eventually wrong under-replicated-partitions "$topic-meanwhile" 3
  write "$topic-meanwhile" 1 30
  refused 'larger than available brokers|cannot be reached' topics --create --topic "$topic-nine" --partitions 1 --replication-factor 9
}

back() {
  "$one_broker" start
  eventually nothing_wrong
  eventually wrong under-replicated-partitions "$topic-meanwhile" 0
  eventually wrong unavailable-partitions "$topic-alone" 0
  same "$(read_all "$topic-alone")" "$(seq 10)"
}

# count FILE: prints how many records a member has read, according to its output
count() { jq -s '[.[] | select(.name == "records_consumed").count] | add // 0' "$1"; }
has_read() { [ "$(count "$1")" -ge "$2" ]; } # has_read FILE COUNT
# A consumer continues after its topic is recreated. The leader changes before that, so the former topic ends with a
# later leader epoch than 0. librdkafka ignores metadata with an older leader epoch than it knows, even that of another
# topic.
made_again() {
  local again="$topic-again" output=$work/again before
  topics --create --topic "$again" --replica-assignment 3:1 --config min.insync.replicas=1
  "$PYTHON" "$here/groups/librdkafka.py" --bootstrap-server "$bootstrap" --group-id "$again" --topic "$again" \
    --session-timeout 6000 >"$output" 2>/dev/null &
  trap "kill $!" EXIT
  write "$again" 1 30
  eventually has_read "$output" 30
  "$one_broker" kill 3
  eventually led "$again" 1
  "$one_broker" start 3
  write "$again" 31 60
  eventually has_read "$output" 60
  before=$(count "$output")
  ours topics delete --topic "$again"
  eventually topics --create --topic "$again" --replica-assignment 3:1 --config min.insync.replicas=1
  write "$again" 61 90
  eventually has_read "$output" $((before + 30))
  eventually nothing_wrong
}

# Prints the partitions whose leader is not their first replica.
unbalanced() { topics --describe --topic "$topic" | sed -nE 's/.*Partition: ([0-9]+).Leader: ([0-9]+).Replicas: ([0-9]+),.*/\1 \2 \3/p' | awk '$2 != $3 { print $1 }'; }
preferred() {
  local one; one=$(unbalanced | head -1)
  [ -n "$one" ]
  has "Successfully completed leader election \(PREFERRED\) for partitions $topic-$one$" "$(elect preferred --topic "$topic" --partition "$one")"
  is_balanced() { lacks "^$1$" "$(unbalanced)"; }
  eventually is_balanced "$one"
  elect preferred --all-topic-partitions
  eventually is_balanced '[0-9]+'
  has "Valid replica already elected for partitions $topic-$one$" "$(elect preferred --topic "$topic" --partition "$one")"
}

unclean() { # an unclean election loses the records that only the former leader has
  "$one_broker" kill 3
  eventually placed "$topic-pair" 'Isr: 2'
  write "$topic-pair" 11 15
  "$one_broker" kill 2
  eventually led "$topic-pair" none
  "$one_broker" start 3
  eventually led "$topic-alone" 3
  led "$topic-pair" none
  refused 'PreferredLeaderNotAvailable' elect preferred --topic "$topic-pair" --partition 0
  has "Successfully completed leader election \(UNCLEAN\) for partitions $topic-pair-0$" "$(elect unclean --topic "$topic-pair" --partition 0)"
  eventually led "$topic-pair" 3
  write "$topic-pair" 21 25
  "$one_broker" start
  eventually nothing_wrong
  eventually wrong under-replicated-partitions "$topic-pair" 0
  same "$(read_all "$topic-pair")" "$(seq 10; seq 21 25)"
}

same_logs() { # compares the replicas' logs by size, then record by record
  local directory dumped first=''
  has '"error":null' "$(log_dirs)"
  same "$(log_dirs --topic-list "$topic" | jq -c '[.brokers[] | select([.logDirs[].partitions[]] | length == 6) | .broker] | sort')" '[1,2,3]'
  same "$(log_dirs --topic-list "$topic" | jq '[.brokers[].logDirs[].partitions[] | {partition, size}] | unique | length')" 6
  [ -n "${DATA_DIR:-}" ] || return 0
  for directory in $(find "$DATA_DIR" -type d -name "$topic-0" -printf '%h\n'); do
    dumped=$(tool org.apache.kafka.tools.DumpLogSegments --deep-iteration --print-data-log --files "$(find "$directory"/"$topic"-[0-5] -name '*.log' | sort | paste -sd,)" 2>&1)
    lacks 'corrupt|isvalid: false|exception' "$dumped"
    same "$(grep -c '^| offset: ' <<<"$dumped")" 900
    dumped=$(grep -v '^Dumping ' <<<"$dumped")
    [ -z "$first" ] || same "$dumped" "$first"
    first=$dumped
  done
}

settings() { # changes a setting of one broker, and its default for all brokers
  local node
  configs --alter --entity-type brokers --entity-name 2 --add-config message.max.bytes=1600000
  eventually described 2 'message.max.bytes=1600000 .*DYNAMIC_BROKER_CONFIG'
  lacks 'message.max.bytes' "$(configs --describe --entity-type brokers --entity-name 1)"
  configs --alter --entity-type brokers --entity-default --add-config message.max.bytes=1500000
  for node in 1 2 3; do eventually described $node 'DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1500000'; done
  configs --alter --entity-type brokers --entity-name 2 --delete-config message.max.bytes
  configs --alter --entity-type brokers --entity-default --delete-config message.max.bytes
}
described() { has "$2" "$(configs --describe --all --entity-type brokers --entity-name "$1")"; }

quorum() { # each broker describes the same quorum
  local at status leader=''
  for at in ${bootstrap//,/ }; do
    status=$(tool org.apache.kafka.tools.MetadataQuorumCommand --bootstrap-server "$at" describe --status)
    same "$(sed -n 's/^CurrentVoters: *//p' <<<"$status" | jq -c '[.[].id] | sort')" '[1,2,3]'
    [ -z "$leader" ] || same "$(grep '^LeaderId:' <<<"$status")" "$leader"
    leader=$(grep '^LeaderId:' <<<"$status")
  done
}

reassign() { # the broker either moves the replica, or refuses with its reason
  local tool=org.apache.kafka.tools.reassign.ReassignPartitionsCommand told
  echo '{"version": 1, "partitions": [{"topic": "'"$topic-pair"'", "partition": 0, "replicas": [1, 2]}]}' >"$work/moves"
  if told=$(tool $tool --bootstrap-server "$bootstrap" --reassignment-json-file "$work/moves" --execute 2>&1); then
    eventually placed "$topic-pair" 'Replicas: 1,2.Isr: [12],[12]'
  else
    has 'does not move partitions between brokers yet' "$told"
    placed "$topic-pair" 'Replicas: 2,3'
  fi
}

delete() {
  topics --delete --topic "$topic.*"
  eventually gone
}
gone() { local listed; listed=$(topics --list) || return; lacks "^$topic" "$listed"; }

check 'kafka-topics --create, --describe of under-replicated partitions: none' create
check 'kafka-consumer-groups of several coordinators' set_offsets
check 'after a kill: kafka-topics --describe of under-replicated partitions, kafka-log-dirs' missing
check 'kafka-topics --create while a broker is missing' created_meanwhile
check 'kafka-consumer-groups while a broker is missing' have_offsets
check 'after its restart: no under-replicated partition' back
check 'kafka-consumer-groups after its restart' have_offsets
if [ -n "${OURS:-}" ]; then
  check 'consumer of librdkafka reads a topic that is made again after an election' made_again
else
  skip 'a topic made again after an election: it begins in leader epoch 0'
fi
check 'kafka-leader-election preferred' preferred
check 'kafka-leader-election unclean' unclean
check 'kafka-log-dirs, kafka-dump-log: all replicas are equal' same_logs
check 'kafka-configs of one broker, of all' settings
check 'kafka-metadata-quorum is the same at every broker' quorum
check 'kafka-reassign-partitions moves, or refuses with the reason' reassign
check 'kafka-topics --delete' delete
summary
