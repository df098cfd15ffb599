// Reads and writes committed offsets in `__consumer_offsets`, with the jars of Kafka's tools:
//
//     CommittedOffsets BOOTSTRAP commit RUN     commits as several groups; their names and topics begin with RUN
//     CommittedOffsets BOOTSTRAP replay RUN     offsets of Kafka's own coordinator after a replay of the topic
//     CommittedOffsets BOOTSTRAP fetch RUN      offsets in the broker's responses to OffsetFetch
//     CommittedOffsets BOOTSTRAP patterns RUN   topics that a consumer gets by patterns
//
// `replay` and `fetch` print a line for each offset, sorted: group, topic, partition, offset, leader epoch and
// metadata. `replay` fails if Kafka's coordinator does not accept a record or expects its group in another partition.

import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.AbstractConfig;
import org.apache.kafka.common.message.OffsetFetchRequestData.OffsetFetchRequestGroup;
import org.apache.kafka.common.message.OffsetFetchRequestData.OffsetFetchRequestTopics;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.utils.Exit;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.common.runtime.CoordinatorExecutor;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.common.runtime.CoordinatorTimer;
import org.apache.kafka.coordinator.common.runtime.Deserializer.UnknownRecordTypeException;
import org.apache.kafka.coordinator.group.GroupConfigManager;
import org.apache.kafka.coordinator.group.GroupCoordinatorConfig;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.GroupCoordinatorShard;
import org.apache.kafka.coordinator.group.generated.OffsetCommitKey;
import org.apache.kafka.coordinator.group.metrics.GroupCoordinatorMetrics;
import org.apache.kafka.coordinator.group.modern.share.ShareGroupConfig;
import org.apache.kafka.timeline.SnapshotRegistry;

public class CommittedOffsets {
    static final String TOPIC = "__consumer_offsets";
    static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();
    static String bootstrap;
    static String run;
    static short replicas = Short.parseShort(System.getenv().getOrDefault("REPLICAS", "1"));
    static Admin admin;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        run = args[2];
        try (Admin opened = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin = opened;
            switch (args[1]) {
                case "commit" -> commit();
                case "replay" -> replay().forEach(System.out::println);
                case "fetch" -> fetch().forEach(System.out::println);
                case "patterns" -> patterns();
                default -> throw new IllegalArgumentException(args[1]);
            }
        }
        Exit.exit(0); // ends the threads of Kafka's coordinator
    }

    static KafkaConsumer<byte[], byte[]> consumer(String... settings) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "enable.auto.commit", "false",
            "auto.offset.reset", "earliest", "key.deserializer", ByteArrayDeserializer.class, "value.deserializer", ByteArrayDeserializer.class));
        for (int i = 0; i < settings.length; i += 2) all.put(settings[i], settings[i + 1]);
        return new KafkaConsumer<>(all);
    }

    static TopicPartition at(String topic, int partition) {
        return new TopicPartition(run + topic, partition);
    }

    /** Commits offsets of several groups. Members commit for the groups `-classic` and `-consumer`. For all other groups,
     * a client commits without being a member. */
    static void commit() throws Exception {
        admin.createTopics(List.of(new NewTopic(run + "-a", 3, replicas), new NewTopic(run + "-b", 2, replicas),
            new NewTopic(run + "-gone", 1, replicas))).all().get();
        for (String group : List.of("-alone", "-gr\u00fcppe-\ud83e\udd80", "-deleted", "-none")) {
            try (var consumer = consumer("group.id", run + group)) {
                consumer.assign(List.of(at("-a", 0), at("-a", 1), at("-a", 2), at("-b", 1), at("-gone", 0)));
                consumer.commitSync(Map.of(at("-a", 0), new OffsetAndMetadata(1), at("-b", 1), new OffsetAndMetadata(1)));
                consumer.commitSync(Map.of(at("-a", 0), new OffsetAndMetadata(7, Optional.of(0), "m\u00e9tadonn\u00e9es \ud83e\udd80"),
                    at("-a", 1), new OffsetAndMetadata(8, Optional.of(3), "x".repeat(4000)), at("-a", 2), new OffsetAndMetadata(0),
                    at("-gone", 0), new OffsetAndMetadata(9)));
            }
        }
        for (String protocol : List.of("classic", "consumer")) {
            try (var consumer = consumer("group.id", run + "-" + protocol, "group.protocol", protocol)) {
                consumer.subscribe(List.of(run + "-a", run + "-b"));
                until(() -> {
                    consumer.poll(Duration.ofMillis(100));
                    return consumer.assignment().size() == 5;
                });
                for (long offset = 1; offset <= 3; offset++) {
                    long next = offset;
                    consumer.commitSync(consumer.assignment().stream().collect(Collectors.toMap(partition -> partition,
                        partition -> new OffsetAndMetadata(next * 10 + partition.partition(), Optional.of(0), protocol + next))));
                }
            }
        }
        admin.deleteTopics(List.of(run + "-gone")).all().get();
    }

    interface Condition { boolean holds() throws Exception; }

    static void until(Condition condition) throws Exception {
        long end = System.nanoTime() + Duration.ofSeconds(60).toNanos();
        while (!condition.holds()) {
            if (System.nanoTime() > end) throw new AssertionError("not within 60 s");
        }
    }

    static String line(String group, String topic, int partition, long offset, int epoch, String metadata) {
        return String.join(" ", group, topic, "" + partition, "" + offset, "" + epoch, metadata);
    }

    static TreeSet<String> fetch() throws Exception {
        var lines = new TreeSet<String>();
        for (var group : admin.listGroups().all().get()) {
            if (!group.groupId().startsWith(run)) continue;
            admin.listConsumerGroupOffsets(group.groupId()).partitionsToOffsetAndMetadata().get().forEach((partition, offset) ->
                lines.add(line(group.groupId(), partition.topic(), partition.partition(), offset.offset(), offset.leaderEpoch().orElse(-1), offset.metadata())));
        }
        return lines;
    }

    /** Returns every record of the topic up to its present end. */
    static List<ConsumerRecord<byte[], byte[]>> records(int partitions) throws Exception {
        var records = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        try (var consumer = consumer()) {
            var all = IntStream.range(0, partitions).mapToObj(partition -> new TopicPartition(TOPIC, partition)).toList();
            var ends = consumer.endOffsets(all);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            until(() -> {
                consumer.poll(Duration.ofMillis(100)).forEach(records::add);
                return all.stream().allMatch(partition -> consumer.position(partition) >= ends.get(partition));
            });
        }
        return records;
    }

    static TreeSet<String> replay() throws Exception {
        int partitions = admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).partitions().size();
        Map<Integer, GroupCoordinatorShard> shards = new HashMap<>();
        var groups = new TreeMap<String, Map<String, TreeSet<Integer>>>();
        int passedOver = 0;
        for (var record : records(partitions)) {
            CoordinatorRecord replayed;
            try {
                replayed = SERDE.deserialize(ByteBuffer.wrap(record.key()), record.value() == null ? null : ByteBuffer.wrap(record.value()));
            } catch (UnknownRecordTypeException unknown) { // as CoordinatorLoaderImpl does
                passedOver++;
                continue;
            }
            shards.computeIfAbsent(record.partition(), CommittedOffsets::shard).replay(record.offset(), -1, (short) -1, replayed);
            if (!(replayed.key() instanceof OffsetCommitKey key)) continue;
            int expected = Utils.abs(key.group().hashCode()) % partitions;
            if (record.partition() != expected) throw new AssertionError(key.group() + " is in " + record.partition() + ", not in " + expected);
            if (key.group().startsWith(run)) groups.computeIfAbsent(key.group(), group -> new TreeMap<>())
                .computeIfAbsent(key.topic(), topic -> new TreeSet<>()).add(key.partition());
        }
        System.err.println(passedOver + " records of unknown types skipped");
        var lines = new TreeSet<String>();
        groups.forEach((group, topics) -> {
            var asked = new OffsetFetchRequestGroup().setGroupId(group).setTopics(topics.entrySet().stream().map(topic ->
                new OffsetFetchRequestTopics().setName(topic.getKey()).setPartitionIndexes(List.copyOf(topic.getValue()))).toList());
            var found = shards.get(Utils.abs(group.hashCode()) % partitions).fetchOffsets(asked, Long.MAX_VALUE);
            for (var topic : found.topics()) for (var partition : topic.partitions()) {
                if (partition.committedOffset() < 0) continue; // it was deleted
                lines.add(line(group, topic.name(), partition.partitionIndex(), partition.committedOffset(), partition.committedLeaderEpoch(), partition.metadata()));
            }
        });
        return lines;
    }

    /** Returns Kafka's coordinator of one partition. It runs on the calling thread and has no timers. */
    @SuppressWarnings("unchecked")
    static GroupCoordinatorShard shard(int partition) {
        var config = GroupCoordinatorConfig.fromProps(Map.of());
        var definition = Utils.mergeConfigs(List.of(GroupCoordinatorConfig.CONFIG_DEF, ShareGroupConfig.CONFIG_DEF));
        var share = new ShareGroupConfig(new AbstractConfig(definition, Map.of(), false));
        var context = new LogContext();
        var builder = new GroupCoordinatorShard.Builder(config, new GroupConfigManager(Map.of(), config, share));
        builder.withAuthorizerPlugin(Optional.empty()).withLogContext(context).withTime(Time.SYSTEM).withSnapshotRegistry(new SnapshotRegistry(context))
            .withTimer(idle(CoordinatorTimer.class)).withExecutor(idle(CoordinatorExecutor.class))
            .withCoordinatorMetrics(new GroupCoordinatorMetrics()).withTopicPartition(new TopicPartition(TOPIC, partition));
        return builder.build();
    }

    @SuppressWarnings("unchecked")
    static <T> T idle(Class<T> of) {
        return (T) Proxy.newProxyInstance(of.getClassLoader(), new Class<?>[] {of},
            (proxy, method, arguments) -> method.getReturnType() == boolean.class ? false : null);
    }

    /** By default, the client's patterns exclude internal topics. The coordinator's patterns (KIP-848) never do. */
    static void patterns() throws Exception {
        String both = "(__consumer_offsets|" + Pattern.quote(run) + "-a)";
        Set<String> ours = Set.of(run + "-a");
        Set<String> all = Set.of(TOPIC, run + "-a");
        for (String protocol : List.of("classic", "consumer")) {
            gets(ours, protocol, "true", consumer -> consumer.subscribe(Pattern.compile(both)));
            gets(all, protocol, "false", consumer -> consumer.subscribe(Pattern.compile(both)));
        }
        gets(all, "consumer", "true", consumer -> consumer.subscribe(new SubscriptionPattern(both)));
    }

    static void gets(Set<String> topics, String protocol, String excluded, java.util.function.Consumer<Consumer<byte[], byte[]>> subscribe) throws Exception {
        String group = run + "-patterns-" + protocol + "-" + excluded + "-" + topics.size();
        try (var consumer = consumer("group.id", group, "group.protocol", protocol, "exclude.internal.topics", excluded)) {
            subscribe.accept(consumer);
            var found = new TreeSet<String>();
            until(() -> {
                consumer.poll(Duration.ofMillis(100));
                found.clear();
                consumer.assignment().forEach(partition -> found.add(partition.topic()));
                return !found.isEmpty();
            });
            if (!found.equals(topics)) throw new AssertionError(group + " gets " + found + ", not " + topics);
        }
    }
}
