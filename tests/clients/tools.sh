#!/usr/bin/env bash
# Kafka's command-line tools against a broker: `tools.sh BOOTSTRAP`, with their jars in $JARS. If DATA_DIR is set to the
# broker's data directory, or to that of all brokers, Kafka's DumpLogSegments also reads the segments of each replica.
# kafka-consumer-groups is tested in fullbore.sh, which compares its lines with ours, and other tools in
# AdminTools.java.
set -uo pipefail
bootstrap=$1 client=tools
. "$(dirname "$0")/cases.sh"
topic="tools-$$-$(date +%s)"

topics() { tool org.apache.kafka.tools.TopicCommand --bootstrap-server "$bootstrap" "$@"; }
configs() { tool kafka.admin.ConfigCommand --bootstrap-server "$bootstrap" --describe --all "$@"; }
offsets() { tool org.apache.kafka.tools.GetOffsetShell --bootstrap-server "$bootstrap" --topic "$1" --time "$2"; }
consume() {
  tool org.apache.kafka.tools.consumer.ConsoleConsumer --bootstrap-server "$bootstrap" --partition 0 --timeout-ms 20000 \
    --command-property enable.auto.commit=false "$@"
}

create() {
  has "Created topic $topic\.$" "$(topics --create --topic "$topic" --partitions 3 --replication-factor "$replicas" --config retention.ms=12345000)"
  refused 'already exists' topics --create --topic "$topic"
  topics --create --topic "$topic" --if-not-exists
}

list_and_describe() {
  has "^$topic$" "$(topics --list)"
  local described; described=$(topics --describe --topic "$topic")
  has "Topic: $topic.TopicId: [A-Za-z0-9_-]{22}.PartitionCount: 3.ReplicationFactor: $replicas.Configs: .*retention.ms=12345000" "$described"
  has "Partition: 2.Leader: [0-9]+.$replicated" "$described"
  refused 'does not exist' topics --describe --topic "$topic-absent"
}

describe_configs() {
  local found; found=$(configs --entity-type topics --entity-name "$topic")
  has '^ *retention.ms=12345000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention.ms=12345000' "$found"
  has '^ *max.message.bytes=1048588 sensitive=false synonyms=\{.*DEFAULT_CONFIG:message.max.bytes=1048588' "$found"
  has '^ *log.retention.hours=168 ' "$(configs --entity-type brokers --entity-name "$(broker)")"
}

alter() { tool kafka.admin.ConfigCommand --bootstrap-server "$bootstrap" --alter "$@"; }

alter_configs() { # changes settings of a topic, of a broker, and of all brokers
  local node of_topic=(--entity-type topics --entity-name "$topic")
  alter "${of_topic[@]}" --add-config retention.ms=54321000,max.message.bytes=2000000
  local found; found=$(configs "${of_topic[@]}")
  has '^ *retention.ms=54321000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention.ms=54321000' "$found"
  has '^ *max.message.bytes=2000000 ' "$found"
  alter "${of_topic[@]}" --delete-config max.message.bytes
  refused 'retention.ms' alter "${of_topic[@]}" --add-config retention.ms=soon
  refused 'no.such.key' alter "${of_topic[@]}" --add-config no.such.key=1
  refused 'not exist' alter --entity-type topics --entity-name "$topic-absent" --add-config retention.ms=1

  alter --entity-type brokers --entity-default --add-config message.max.bytes=1500000
  eventually described_as DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1500000 "${of_topic[@]}"
  local nodes; nodes=$(brokers) # any broker returns a topic's settings
  for node in $nodes; do alter --entity-type brokers --entity-name "$node" --add-config message.max.bytes=1600000; done
  eventually described_as '1600000 .*DYNAMIC_BROKER_CONFIG:message.max.bytes=1600000, DYNAMIC_DEFAULT_BROKER_CONFIG:message.max.bytes=1500000' "${of_topic[@]}"
  for node in $nodes; do alter --entity-type brokers --entity-name "$node" --delete-config message.max.bytes; done
  alter --entity-type brokers --entity-default --delete-config message.max.bytes
  eventually described_as 'max.message.bytes=1048588 ' "${of_topic[@]}"
  refused '[Cc]annot' alter --entity-type brokers --entity-name "$node" --add-config node.id=9
}

described_as() { local pattern=$1 found; shift; found=$(configs "$@") && has "$pattern" "$found"; }

alter_window() { # changes the window of KIP-1269, which Apache Kafka does not support yet
  local key=max.idempotence.batches.to.retain of_topic=producer.state.batches.to.retain
  alter --entity-type topics --entity-name "$topic" --add-config $of_topic=64
  alter --entity-type brokers --entity-default --add-config $key=20
  described_as "$of_topic=64 .*DYNAMIC_TOPIC_CONFIG:$of_topic=64, DYNAMIC_DEFAULT_BROKER_CONFIG:$key=20, DEFAULT_CONFIG:$key=5" \
    --entity-type topics --entity-name "$topic"
  refused "$key=4: must be between 5 and 10000" alter --entity-type brokers --entity-default --add-config $key=4
  refused "$of_topic=10001: must be between 5 and 10000" alter --entity-type topics --entity-name "$topic" --add-config $of_topic=10001
  alter --entity-type brokers --entity-default --delete-config $key
  alter --entity-type topics --entity-name "$topic" --delete-config $of_topic
}

knows_window() { [ -n "${OURS:-}" ] || described_as '^ *max.idempotence.batches.to.retain=' --entity-type brokers --entity-name "$(broker)" >/dev/null; }

broker() { topics --describe --topic "$topic" | sed -nE 's/.*Partition: 0.Leader: ([0-9]+).*/\1/p'; }
brokers() { tool org.apache.kafka.tools.ClusterTool list-endpoints --bootstrap-server "$bootstrap" | sed -nE 's/^([0-9]+) .*/\1/p'; }

console() { # the console consumer prints the console producer's records
  printf 'h:1,h:2\tkey\tvalue\nNULL\tNULL\tno key\nNULL\tgone\tNULL\n' >"$work/in"
  tool org.apache.kafka.tools.ConsoleProducer --bootstrap-server "$bootstrap" --topic "$topic-console" --compression-codec zstd \
    --reader-property parse.headers=true --reader-property parse.key=true --reader-property null.marker=NULL <"$work/in"
  local print=(--formatter-property print.headers=true --formatter-property print.key=true --formatter-property null.literal=NULL)
  local all; all=$(consume --topic "$topic-console" --offset earliest --max-messages 3 "${print[@]}")
  same "$all" "$(sed 's/^NULL/NO_HEADERS/' "$work/in")"
  has '^NO_HEADERS.gone.NULL$' "$(consume --topic "$topic-console" --offset 2 --max-messages 1 "${print[@]}")"
}

recompress() { # records are stored and dumped with the topic's codec, and read back
  local name="$topic-recompressed" of_topic codec sent=snappy
  of_topic=(--entity-type topics --entity-name "$name")
  topics --create --topic "$name" --config compression.gzip.level=9 --config compression.lz4.level=12 --config compression.zstd.level=19
  for codec in gzip lz4 zstd uncompressed; do
    alter "${of_topic[@]}" --add-config compression.type=$codec
    eventually described_as "^ *compression.type=$codec " "${of_topic[@]}"
    seq -f "$codec %g" 300 | tool org.apache.kafka.tools.ConsoleProducer --bootstrap-server "$bootstrap" --topic "$name" --compression-codec $sent
    sent=$codec; [ $sent != uncompressed ] || sent=none
  done
  same "$(consume --topic "$name" --offset earliest --max-messages 1200)" "$(for codec in gzip lz4 zstd uncompressed; do seq -f "$codec %g" 300; done)"
  refused 'compression.type' alter "${of_topic[@]}" --add-config compression.type=brotli
  [ -n "${DATA_DIR:-}" ] || return 0
  local dumped files; files=$(find "$DATA_DIR" -path "*/$name-0/*.log")
  same "$(wc -l <<<"$files")" "$replicas"
  for file in $files; do
    dumped=$(tool org.apache.kafka.tools.DumpLogSegments --deep-iteration --files "$file" 2>&1)
    lacks 'corrupt|isvalid: false|exception' "$dumped"
    same "$(grep -o 'compresscodec: [a-z0-9]*' <<<"$dumped" | cut -d' ' -f2 | uniq | paste -sd,)" gzip,lz4,zstd,none
    same "$(grep -c '^| offset: ' <<<"$dumped")" 1200
  done
}

perf() { # perf PROPERTY...: writes 30,000 records, all of which must be in the log
  local name="$topic-perf-$*"; name=${name//[ =]/-}
  topics --create --topic "$name" --partitions 2 --config segment.bytes=4000000 # small enough for closed segments
  has '^30000 records sent, [0-9.]+ records/sec' "$(tool org.apache.kafka.tools.ProducerPerformance --bootstrap-server "$bootstrap" \
    --topic "$name" --num-records 30000 --record-size 1000 --throughput -1 --command-property "$@")"
  same "$(offsets "$name" -1 | awk -F: '{ sum += $3 } END { print sum }')" 30000
}

perf_consumer() { # reads the records in a group
  local name="$topic-perf-linger.ms-5"
  has ', 30000, ' "$(tool org.apache.kafka.tools.ConsumerPerformance --bootstrap-server "$bootstrap" --topic "$name" --num-records 30000 --timeout 20000)"
}

# Checks that every record is acknowledged and then read in order. The producer has its own JVM, because it prints some
# acknowledgements only while the JVM ends.
verifiable() {
  local sent; sent=$("${jvm[@]}" org.apache.kafka.tools.VerifiableProducer --bootstrap-server "$bootstrap" --topic "$topic-verifiable" \
    --max-messages 2000 --acks -1 --value-prefix 7)
  same "$(grep -c '"producer_send_success"' <<<"$sent")" 2000
  same "$(consume --topic "$topic-verifiable" --offset earliest --max-messages 2000)" "$(seq -f 7.%g 0 1999)"
}

offset_shell() {
  same "$(offsets "$topic-console" -2)" "$topic-console:0:0" # -2 is the earliest offset
  same "$(offsets "$topic-console" -1)" "$topic-console:0:3" # -1 is the latest offset
  has "^$topic-console:0:[0-2]$" "$(offsets "$topic-console" -3)" # -3 is the offset of the largest timestamp
  same "$(offsets "$topic-console" 1)" "$topic-console:0:0"
}

cluster() {
  has '^Cluster ID: .+' "$(tool org.apache.kafka.tools.ClusterTool cluster-id --bootstrap-server "$bootstrap")"
  local address endpoints; endpoints=$(tool org.apache.kafka.tools.ClusterTool list-endpoints --bootstrap-server "$bootstrap")
  for address in ${bootstrap//,/ }; do has "${address%:*} +${address#*:}" "$endpoints"; done
  local versions; versions=$(tool org.apache.kafka.tools.BrokerApiVersionsCommand --bootstrap-server "$bootstrap")
  has 'Produce\(0\): 0 to 1[34] \[usable: 13\]' "$versions"
  has 'Fetch\(1\): 4 to 18 \[usable: 18\]' "$versions"
}

dump() { # DumpLogSegments reads every record of the perf topics and checks their indexes
  local directories dumped
  directories=$(find "$DATA_DIR" -type d -name "$topic-perf-*")
  files() { find $directories -name "$1" -size +0 | paste -sd,; }
  has '.log,.*.timeindex,' "$(files '*.log'),$(files '*.timeindex'),"
  dumped=$(tool org.apache.kafka.tools.DumpLogSegments --deep-iteration --files "$(files '*.log')" 2>&1)
  lacks 'invalid|corrupt|mismatch|missing|isvalid: false|exception' "$dumped"
  same "$(grep -c '^| offset: ' <<<"$dumped")" $((60000 * replicas))
  dumped=$(tool org.apache.kafka.tools.DumpLogSegments --verify-index-only --files "$(files '*.index'),$(files '*.timeindex')" 2>&1)
  lacks 'mismatch|exception|out of order|not found' "$dumped"
}

gone() { local listed; listed=$(topics --list) || return; lacks "^$topic" "$listed"; }

delete() {
  topics --delete --topic "$topic"
  eventually refused "does not exist" topics --delete --topic "$topic"
  topics --delete --topic "$topic-.*"
  eventually gone
}

check 'kafka-topics --create' create
check 'kafka-topics --list, --describe' list_and_describe
check 'kafka-topics --create with a bad config is refused' refused 'no.such.key' topics --create --topic "$topic-bad" --config no.such.key=1
check 'kafka-topics --create with a bad name is refused' refused 'illegal|invalid' topics --create --topic 'bad name!'
check 'kafka-configs --describe' describe_configs
check 'kafka-configs --alter' alter_configs
if knows_window; then check 'kafka-configs --alter, KIP-1269' alter_window; else skip 'KIP-1269: unknown to this broker'; fi
check 'kafka-console-producer, kafka-console-consumer' console
check 'kafka-configs compression.type, kafka-console-producer with another codec' recompress
check 'kafka-producer-perf-test, defaults' perf linger.ms=5
check 'kafka-producer-perf-test, acks=1, lz4' perf acks=1 compression.type=lz4
check 'kafka-consumer-perf-test' perf_consumer
check 'kafka-verifiable-producer' verifiable
check 'kafka-get-offsets' offset_shell
check 'kafka-cluster, kafka-broker-api-versions' cluster
[ -z "${DATA_DIR:-}" ] || check 'kafka-dump-log' dump
check 'kafka-topics --delete' delete
summary
