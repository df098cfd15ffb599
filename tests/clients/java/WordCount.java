// Kafka Streams against a broker: `WordCount BOOTSTRAP`.
//
// Counts words with all features that Streams creates itself: a repartition topic, a changelog, a group, and committed
// offsets. This is done at least once, and then exactly once, which uses transactions. The stores are in memory, so
// every start restores them from the changelog.

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

public class WordCount {
    interface Check { void run() throws Exception; }

    static String guarantee, RUN, LINES, COUNTS;
    static final short REPLICAS = Short.parseShort(System.getenv().getOrDefault("REPLICAS", "1"));
    static final int PARTITIONS = 3;
    static final Duration WAIT = Duration.ofSeconds(60);
    static final Map<String, Long> expected = new HashMap<>();
    static String bootstrap;
    static Admin admin;
    static int passed, failed;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        count("at_least_once", Map.of());
        count("exactly_once_v2", Map.of());
        // A standalone broker of ours has an object store. The application's own topics are compacted and therefore
        // classic.
        if (System.getenv("OURS") != null && REPLICAS == 1) count("exactly_once_v2", Map.of("diskless.enable", "true"));
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed > 0 ? 1 : 0);
    }

    static void count(String guarantee, Map<String, String> settings) {
        WordCount.guarantee = guarantee;
        RUN = "streams-" + guarantee.replace('_', '-') + "-" + ProcessHandle.current().pid() + "-" + System.currentTimeMillis();
        LINES = RUN + "-lines";
        COUNTS = RUN + "-counts";
        expected.clear();
        checks(settings);
    }

    static void checks(Map<String, String> settings) {
        check("one instance counts words", () -> {
            var topics = List.of(new NewTopic(LINES, PARTITIONS, REPLICAS), new NewTopic(COUNTS, PARTITIONS, REPLICAS));
            topics.forEach(topic -> topic.configs(settings));
            admin.createTopics(topics).all().get();
            counting(1, () -> write(0, 300));
        });
        check("its topics have the replicas wanted", WordCount::internalTopics);
        check("two instances go on from the changelog", () -> counting(2, () -> write(300, 600)));
        check("its group and topics are deleted", WordCount::deleteAll);
    }

    static void check(String name, Check test) {
        try {
            test.run();
            passed++;
            System.out.println("ok   streams, " + guarantee + ": " + name);
        } catch (Exception | AssertionError failure) { // the other cases still run
            failed++;
            System.out.println("FAIL streams, " + guarantee + ": " + name + ": " + failure);
        }
    }

    static KafkaStreams start(int instance) {
        var settings = new Properties();
        settings.putAll(Map.of("application.id", RUN, "client.id", RUN + "-" + instance, "bootstrap.servers", bootstrap,
            "processing.guarantee", guarantee, "replication.factor", (int) REPLICAS, "commit.interval.ms", 100,
            "state.dir", System.getProperty("java.io.tmpdir") + "/" + RUN + "-" + instance));
        settings.put("main.consumer.session.timeout.ms", 10000);
        settings.put("main.consumer.heartbeat.interval.ms", 500);
        var builder = new StreamsBuilder();
        builder.<byte[], String>stream(LINES, Consumed.with(Serdes.ByteArray(), Serdes.String()))
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.with("words", Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts")).withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream().to(COUNTS, Produced.with(Serdes.String(), Serdes.Long()));
        var streams = new KafkaStreams(builder.build(), settings);
        streams.start();
        return streams;
    }

    /** Runs `instances` instances until they have counted all records that were written meanwhile. */
    static void counting(int instances, Check writing) throws Exception {
        var running = new ArrayList<KafkaStreams>();
        try {
            for (int i = 0; i < instances; i++) running.add(start(i));
            until("all run", () -> running.stream().allMatch(one -> one.state() == KafkaStreams.State.RUNNING));
            writing.run();
            until("everything is counted", () -> counts().equals(expected));
            until("all run still", () -> running.stream().allMatch(one -> one.state() == KafkaStreams.State.RUNNING));
        } finally {
            for (var one : running) if (!one.close(WAIT)) throw new AssertionError("it does not close");
        }
    }

    static void write(int first, int end) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int i = first; i < end; i++) {
                String line = "all w" + i % 7 + " w" + i % 11;
                for (String word : line.split(" ")) expected.merge(word, 1L, Long::sum);
                producer.send(new ProducerRecord<>(LINES, i % PARTITIONS, null, line));
            }
        }
    }

    interface Condition { boolean holds() throws Exception; }

    static void until(String what, Condition condition) throws Exception {
        long end = System.nanoTime() + WAIT.toNanos();
        while (!condition.holds()) {
            if (System.nanoTime() > end) throw new AssertionError("not in time: " + what + "; " + counts() + " of " + expected);
            TimeUnit.MILLISECONDS.sleep(100);
        }
    }

    /** Returns the last count of each word. Fails if a count decreases. */
    static Map<String, Long> counts() {
        var counts = new HashMap<String, Long>();
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "enable.auto.commit", false, "group.id", RUN + "-reader",
            "isolation.level", guarantee.equals("exactly_once_v2") ? "read_committed" : "read_uncommitted");
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new LongDeserializer())) {
            var all = IntStream.range(0, PARTITIONS).mapToObj(p -> new TopicPartition(COUNTS, p)).toList();
            var ends = consumer.endOffsets(all);
            consumer.assign(all);
            consumer.seekToBeginning(all);
            while (!all.stream().allMatch(partition -> consumer.position(partition) >= ends.get(partition))) {
                for (var record : consumer.poll(Duration.ofMillis(100))) {
                    Long before = counts.put(record.key(), record.value());
                    if (before != null && before > record.value()) throw new AssertionError(record.key() + " was " + before + ", then " + record.value());
                }
            }
        }
        return counts;
    }

    static void internalTopics() throws Exception {
        var names = List.of(RUN + "-words-repartition", RUN + "-counts-changelog");
        for (var topic : admin.describeTopics(names).allTopicNames().get().values()) {
            for (var partition : topic.partitions()) {
                if (partition.replicas().size() != REPLICAS || topic.partitions().size() != PARTITIONS) throw new AssertionError("" + topic);
            }
        }
    }

    static void deleteAll() throws Exception {
        // The members do not leave the group. It becomes empty when their sessions end.
        until("the group is empty", () -> admin.describeConsumerGroups(List.of(RUN)).all().get().get(RUN).groupState() == GroupState.EMPTY);
        admin.deleteConsumerGroups(List.of(RUN)).all().get();
        admin.deleteTopics(admin.listTopics().names().get().stream().filter(topic -> topic.startsWith(RUN)).toList()).all().get();
    }
}
