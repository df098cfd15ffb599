// The Java client against a broker: `Client BOOTSTRAP`.
//
// Groups are tested elsewhere. Partitions are assigned by hand, and no offset is committed. Every case reads its
// records back and compares keys, values, headers, timestamps and offsets exactly.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.DescribeProducersOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidReplicationFactorException;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.LogDirNotFoundException;
import org.apache.kafka.common.errors.NotLeaderOrFollowerException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.ResourceNotFoundException;
import org.apache.kafka.common.errors.SecurityDisabledException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class Client {
    interface Check { void run() throws Exception; }

    /** A record to be sent, in which null and empty differ. */
    record Sent(byte[] key, byte[] value, long timestamp, Header... headers) {}

    static final Duration WAIT = Duration.ofSeconds(60);
    /**
     * Time limits of the clients. With eight passes on two processors, a first TLS handshake may take ten seconds,
     * which is Kafka's default limit.
     */
    static final int API_MS = (int) WAIT.toMillis(), REQUEST_MS = 30_000;
    static final Map<String, Object> PATIENT = Map.of("request.timeout.ms", REQUEST_MS,
        "socket.connection.setup.timeout.ms", REQUEST_MS, "socket.connection.setup.timeout.max.ms", REQUEST_MS);
    static final long T0 = System.currentTimeMillis() - 600_000; // inside every default timestamp bound
    static final String RUN = "java-" + ProcessHandle.current().pid() + "-" + System.currentTimeMillis() / 1000;
    static final int REPLICAS = Integer.parseInt(System.getenv().getOrDefault("REPLICAS", "1"));
    static final Map<String, Check> CASES = new LinkedHashMap<>();
    static String bootstrap;
    static Admin admin;

    public static void main(String[] args) {
        bootstrap = args[0];
        admin = Admin.create(secured(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", API_MS)));
        produceCases();
        consumeCases();
        adminCases();
        CASES.put("all topics removed", Client::removeTopics);
        int failed = 0;
        for (var test : CASES.entrySet()) {
            try {
                test.getValue().run();
                System.out.println("ok   java: " + test.getKey());
            } catch (Exception | AssertionError failure) { // the other cases still run
                failed++;
                System.out.println("FAIL java: " + test.getKey() + ": " + failure);
            }
        }
        System.out.println(CASES.size() - failed + " passed, " + failed + " failed");
        System.exit(failed > 0 ? 1 : 0);
    }

    /** Returns the settings of a patient client. If TLS names a file of client properties, adds those. */
    static Map<String, Object> secured(Map<String, Object> config) {
        var all = new HashMap<>(PATIENT);
        all.putAll(config);
        String path = System.getenv("TLS");
        if (path != null) {
            var given = new java.util.Properties();
            try (var file = new java.io.FileReader(path)) {
                given.load(file);
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
            given.forEach((key, value) -> all.put((String) key, value));
        }
        return all;
    }

    // --- writing and reading ---------------------------------------------------------------------

    static byte[] bytes(String text) { return text.getBytes(StandardCharsets.UTF_8); }

    static byte[] random(int size) {
        byte[] value = new byte[size];
        new Random().nextBytes(value);
        return value;
    }

    static void want(boolean ok, Object found) {
        if (!ok) throw new AssertionError("found " + found);
    }

    static void same(Object found, Object expected) {
        if (!found.equals(expected)) throw new AssertionError("found " + found + ", not " + expected);
    }

    static void refused(Class<? extends Exception> type, Check action) throws Exception {
        try {
            action.run();
        } catch (ExecutionException error) {
            if (!type.isInstance(error.getCause())) throw error;
            return;
        }
        throw new AssertionError("accepted, not refused with " + type.getSimpleName());
    }

    static <T> T get(Future<T> future) throws Exception { return future.get(WAIT.toSeconds(), TimeUnit.SECONDS); }

    /** Returns records that are easily lost or merged, followed by enough bytes to compress. */
    static List<Sent> oddRecords() {
        Header[] headers = {
            new RecordHeader("h", bytes("1")), new RecordHeader("h", bytes("2")), new RecordHeader("h", (byte[]) null),
            new RecordHeader("empty", bytes("")), new RecordHeader("\u00fcn\u00ef", new byte[] {0, -1}),
        };
        var records = new ArrayList<>(List.of(
            new Sent(bytes("k"), bytes("v"), T0), new Sent(null, bytes("no key"), T0 + 10),
            new Sent(bytes("tombstone"), null, T0 + 20), new Sent(null, null, T0 + 30),
            new Sent(bytes(""), bytes(""), T0 + 40), new Sent(bytes("h"), bytes("h"), T0 + 50, headers)));
        for (int i = 6; i < 106; i++)
            records.add(new Sent(bytes("key-" + i), bytes(("some text " + i + " ").repeat(20)), T0 + 10 * i));
        return records;
    }

    static List<Sent> numbered(int count, int size) {
        return IntStream.range(0, count).mapToObj(i -> new Sent(bytes("" + i), bytes("x".repeat(size)), T0 + i)).toList();
    }

    static void create(String topic, int partitions, int replicas, Map<String, String> configs) throws Exception {
        get(admin.createTopics(List.of(new NewTopic(topic, partitions, (short) replicas).configs(configs))).all());
    }

    static String newTopic(String name, int partitions, Map<String, String> configs) throws Exception {
        String topic = RUN + "-" + name;
        create(topic, partitions, REPLICAS, configs);
        untilKnown(topic);
        return topic;
    }

    static String newTopic(String name) throws Exception { return newTopic(name, 1, Map.of()); }

    /** Sends records in order to the partition `partition`, or by their keys if it is null. The settings are given as
     * key, value, key, value. */
    static List<RecordMetadata> send(String topic, Integer partition, List<Sent> records, Object... settings) throws Exception {
        Map<String, Object> config = secured(Map.of("bootstrap.servers", bootstrap, "linger.ms", 20, "max.block.ms", API_MS, "delivery.timeout.ms", API_MS));
        for (int i = 0; i < settings.length; i += 2) config.put((String) settings[i], settings[i + 1]);
        var futures = new ArrayList<Future<RecordMetadata>>();
        var sent = new ArrayList<RecordMetadata>();
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            for (Sent r : records)
                futures.add(producer.send(new ProducerRecord<>(topic, partition, r.timestamp, r.key, r.value, Arrays.asList(r.headers))));
            producer.flush();
            for (var future : futures) sent.add(get(future));
        }
        return sent;
    }

    static KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings, TopicPartition... partitions) {
        Map<String, Object> config = secured(Map.of("bootstrap.servers", bootstrap, "enable.auto.commit", false,
            "auto.offset.reset", "none", "default.api.timeout.ms", API_MS));
        config.putAll(settings);
        var consumer = new KafkaConsumer<>(config, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.assign(List.of(partitions));
        return consumer;
    }

    static List<ConsumerRecord<byte[], byte[]>> read(TopicPartition from, long offset, int count, Map<String, Object> settings) {
        var records = new ArrayList<ConsumerRecord<byte[], byte[]>>();
        long deadline = System.nanoTime() + WAIT.toNanos();
        try (var consumer = consumer(settings, from)) {
            consumer.seek(from, offset);
            while (records.size() < count && System.nanoTime() < deadline)
                consumer.poll(Duration.ofMillis(500)).forEach(records::add);
        }
        same(records.size(), count);
        return records;
    }

    static String text(long offset, long timestamp, byte[] key, byte[] value, Iterable<Header> headers) {
        var text = new StringBuilder(offset + "@" + timestamp + " " + Arrays.toString(key) + "=" + Arrays.toString(value));
        for (Header h : headers) text.append(" ").append(h.key()).append(":").append(Arrays.toString(h.value()));
        return text.toString();
    }

    static void same(List<ConsumerRecord<byte[], byte[]>> found, List<Sent> expected, long first) {
        same(found.size(), expected.size());
        for (int i = 0; i < found.size(); i++) {
            var f = found.get(i);
            Sent e = expected.get(i);
            same(text(f.offset(), f.timestamp(), f.key(), f.value(), f.headers()),
                text(first + i, e.timestamp, e.key, e.value, Arrays.asList(e.headers)));
        }
    }

    static TopicPartition zero(String topic) { return new TopicPartition(topic, 0); }

    static void roundTrip(String topic, List<Sent> records, Object... settings) throws Exception {
        send(topic, 0, records, settings);
        same(read(zero(topic), 0, records.size(), Map.of()), records, 0);
    }

    // --- produce ---------------------------------------------------------------------------------

    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");

    static void produceCases() {
        for (String acks : List.of("0", "1", "all"))
            for (String codec : CODECS)
                CASES.put("produce acks=" + acks + " " + codec, () -> produce(acks, codec, false));
        for (String codec : CODECS) CASES.put("produce idempotent " + codec, () -> produce("all", codec, true));
        CASES.put("produce idempotent, many batches, in order", () ->
            roundTrip(newTopic("many"), numbered(5000, 100), "batch.size", 8000, "linger.ms", 0));
        for (String codec : List.of("none", "zstd"))
            CASES.put("produce 900 KB, " + codec, () -> roundTrip(newTopic("big-" + codec),
                List.of(new Sent(null, random(900_000), T0), new Sent(null, random(900_000), T0)), "compression.type", codec));
        CASES.put("produce above message.max.bytes is refused", () -> tooBig(newTopic("too-big"), 1_500_000));
        CASES.put("produce above the topic's max.message.bytes is refused", () ->
            tooBig(newTopic("small", 1, Map.of("max.message.bytes", "20000")), 30_000));
        CASES.put("produce a batch that must be split", Client::split);
        CASES.put("produce a day ahead is refused", () -> refused(InvalidTimestampException.class, () ->
            send(newTopic("future"), 0, List.of(new Sent(null, bytes("v"), System.currentTimeMillis() + 86_400_000)))));
        CASES.put("produce to a LogAppendTime topic", Client::logAppendTime);
        CASES.put("produce to a missing topic creates it", () -> roundTrip(RUN + "-auto", oddRecords()));
        CASES.put("produce by key over 6 partitions", Client::byKey);
        CASES.put("transactions commit and abort", Client::transaction);
        CASES.put("a second producer of a transactional id fences the first", Client::fenced);
    }

    static void produce(String acks, String codec, boolean idempotent) throws Exception {
        String topic = newTopic("produce-" + acks + "-" + codec + "-" + idempotent);
        var sent = send(topic, 0, oddRecords(), "acks", acks, "compression.type", codec, "enable.idempotence", idempotent);
        for (int i = 0; i < sent.size(); i++) same(sent.get(i).offset(), acks.equals("0") ? -1L : (long) i);
        same(read(zero(topic), 0, oddRecords().size(), Map.of()), oddRecords(), 0);
    }

    static void tooBig(String topic, int size) throws Exception {
        refused(RecordTooLargeException.class, () ->
            send(topic, 0, List.of(new Sent(null, random(size), T0)), "max.request.size", 4_000_000));
        roundTrip(topic, oddRecords().subList(0, 20));
    }

    /** The broker refuses a batch as too large. The client splits it and sends it again with the same producer id. */
    static void split() throws Exception {
        String topic = newTopic("split", 1, Map.of("max.message.bytes", "20000"));
        roundTrip(topic, numbered(400, 100), "batch.size", 200_000, "linger.ms", 200);
    }

    static void logAppendTime() throws Exception {
        String topic = newTopic("append-time", 1, Map.of("message.timestamp.type", "LogAppendTime"));
        long before = System.currentTimeMillis() - 1000;
        for (var metadata : send(topic, 0, oddRecords(), "compression.type", "lz4"))
            want(metadata.timestamp() > before, metadata.timestamp());
        for (var record : read(zero(topic), 0, oddRecords().size(), Map.of()))
            want(record.timestampType() == TimestampType.LOG_APPEND_TIME && record.timestamp() > before, record);
    }

    static void byKey() throws Exception {
        String topic = newTopic("six", 6, Map.of());
        var records = numbered(600, 10);
        var expected = new HashMap<Integer, List<Sent>>();
        var sent = send(topic, null, records);
        for (int i = 0; i < records.size(); i++)
            expected.computeIfAbsent(sent.get(i).partition(), p -> new ArrayList<>()).add(records.get(i));
        same(expected.size(), 6);
        for (var partition : expected.entrySet())
            same(read(new TopicPartition(topic, partition.getKey()), 0, partition.getValue().size(), Map.of()), partition.getValue(), 0);
    }

    static void transaction() throws Exception {
        String topic = newTopic("transaction", 2, Map.of());
        Map<String, Object> config = secured(Map.of("bootstrap.servers", bootstrap, "transactional.id", RUN + "-transaction", "max.block.ms", API_MS));
        try (var producer = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.initTransactions();
            for (String value : List.of("first", "aborted", "last")) {
                producer.beginTransaction();
                for (int partition = 0; partition < 2; partition++)
                    producer.send(new ProducerRecord<>(topic, partition, null, value.getBytes()));
                producer.flush();
                if (value.equals("aborted")) producer.abortTransaction(); else producer.commitTransaction();
            }
        }
        for (int partition = 0; partition < 2; partition++) {
            var from = new TopicPartition(topic, partition);
            same(values(read(from, 0, 2, Map.of("isolation.level", "read_committed"))), "0 first, 4 last");
            same(values(read(from, 0, 3, Map.of("isolation.level", "read_uncommitted"))), "0 first, 2 aborted, 4 last");
        }
    }

    static String values(List<ConsumerRecord<byte[], byte[]>> records) {
        return String.join(", ", records.stream().map(r -> r.offset() + " " + new String(r.value())).toList());
    }

    /** A second producer with the same id ends the transaction of the first one, which can then write no more. */
    static void fenced() throws Exception {
        String topic = newTopic("fenced", 1, Map.of());
        Map<String, Object> config = secured(Map.of("bootstrap.servers", bootstrap, "transactional.id", RUN + "-fenced", "max.block.ms", API_MS));
        try (var first = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer());
             var second = new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            first.initTransactions();
            first.beginTransaction();
            first.send(new ProducerRecord<>(topic, 0, null, "lost".getBytes())).get();
            second.initTransactions();
            try {
                first.commitTransaction();
                want(false, "a fenced producer commits");
            } catch (ProducerFencedException | InvalidProducerEpochException fenced) { /* as it should be */ }
            second.beginTransaction();
            second.send(new ProducerRecord<>(topic, 0, null, "kept".getBytes()));
            second.commitTransaction();
        }
        same(values(read(zero(topic), 0, 1, Map.of("isolation.level", "read_committed"))), "2 kept");
    }

    // --- consume ---------------------------------------------------------------------------------

    static void consumeCases() {
        for (String codec : List.of("none", "zstd")) CASES.put("consume from the middle of a batch, " + codec, () -> {
            String topic = newTopic("middle-" + codec);
            send(topic, 0, oddRecords(), "compression.type", codec);
            same(read(zero(topic), 7, 99, Map.of()), oddRecords().subList(7, 106), 7);
        });
        CASES.put("consume read_committed", () -> {
            String topic = newTopic("committed");
            send(topic, 0, oddRecords());
            same(read(zero(topic), 0, 106, Map.of("isolation.level", "read_committed")), oddRecords(), 0);
        });
        CASES.put("consume with small fetches", () -> {
            String topic = newTopic("small-fetches");
            send(topic, 0, numbered(60, 5000));
            same(read(zero(topic), 0, 60, Map.of("fetch.max.bytes", 1000, "max.partition.fetch.bytes", 1000)), numbered(60, 5000), 0);
        });
        CASES.put("consume 20 partitions at once, again and again", Client::manyPartitions);
        CASES.put("consume at the end wakes up for a new record", Client::tail);
        CASES.put("consume beyond the end is refused", Client::outOfRange);
        CASES.put("consume on after the topic is recreated with fewer records", Client::readAgain);
        CASES.put("offsets: earliest, latest, by time, max timestamp", Client::offsets);
    }

    /** Keeps one fetch session busy. Each round wakes another one of the twenty partitions. */
    static void manyPartitions() throws Exception {
        String topic = newTopic("twenty", 20, Map.of());
        var all = IntStream.range(0, 20).mapToObj(p -> new TopicPartition(topic, p)).toArray(TopicPartition[]::new);
        try (var consumer = consumer(Map.of(), all)) {
            consumer.seekToBeginning(List.of(all));
            for (int i = 0; i < 40; i++) {
                send(topic, i * 7 % 20, List.of(new Sent(null, bytes("" + i), T0)));
                var records = consumer.poll(WAIT);
                same(records.count(), 1);
                same(new String(records.iterator().next().value()), "" + i);
            }
        }
    }

    static void tail() throws Exception {
        String topic = newTopic("tail");
        send(topic, 0, oddRecords());
        try (var consumer = consumer(Map.of("fetch.max.wait.ms", 20_000, "request.timeout.ms", 30_000, "fetch.min.bytes", 1), zero(topic))) {
            consumer.seekToEnd(List.of(zero(topic)));
            same(consumer.position(zero(topic)), 106L);
            same(consumer.poll(Duration.ofSeconds(1)).count(), 0);
            send(topic, 0, List.of(new Sent(null, bytes("new"), T0)));
            var records = consumer.poll(Duration.ofSeconds(15));
            want(!records.isEmpty(), "a long poll that slept on");
            same(records.count(), 1);
            same(records.iterator().next().offset(), 106L);
            consumer.close(CloseOptions.timeout(Duration.ZERO)); // without it, close waits for the next long poll
        }
    }

    static void outOfRange() throws Exception {
        String topic = newTopic("range");
        send(topic, 0, oddRecords());
        try {
            read(zero(topic), 1000, 1, Map.of());
        } catch (OffsetOutOfRangeException expected) {
            same(expected.offsetOutOfRangePartitions(), Map.of(zero(topic), 1000L));
            return;
        }
        throw new AssertionError("offset 1000 was served");
    }

    /**
     * The consumer's position is past the end of the new topic, whose records have a later leader epoch. So the
     * consumer finds that the former records are gone, and reads the new ones from the beginning.
     */
    static void readAgain() throws Exception {
        String topic = newTopic("read-again");
        send(topic, 0, numbered(10, 1));
        try (var consumer = consumer(Map.of("auto.offset.reset", "earliest", "metadata.max.age.ms", 500), zero(topic))) {
            same(keysRead(consumer, 10), "0 1 2 3 4 5 6 7 8 9");
            for (int life = 0; life < 2; life++) {
                var former = idOf(topic);
                delete(List.of(topic));
                until("it is unknown", () -> idOf(topic).isEmpty());
                newTopic("read-again");
                until("it has another id", () -> idOf(topic).filter(id -> !id.equals(former.orElseThrow())).isPresent());
                send(topic, 0, numbered(5, 1));
                same(keysRead(consumer, 5), "0 1 2 3 4");
                send(topic, 0, List.of(new Sent(bytes("last"), bytes("v"), T0)));
                same(keysRead(consumer, 1), "last");
            }
        }
    }

    static String keysRead(KafkaConsumer<byte[], byte[]> consumer, int count) {
        var keys = new ArrayList<String>();
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (keys.size() < count && System.nanoTime() < deadline)
            consumer.poll(Duration.ofMillis(500)).forEach(record -> keys.add(new String(record.key())));
        return String.join(" ", keys);
    }

    static void offsets() throws Exception {
        TopicPartition at = zero(newTopic("times"));
        for (int ms : new int[] {0, 100, 200, 900, 300}) send(at.topic(), 0, List.of(new Sent(null, bytes("v"), T0 + ms)));
        try (var consumer = consumer(Map.of(), at)) {
            same(consumer.beginningOffsets(List.of(at)), Map.of(at, 0L));
            same(consumer.endOffsets(List.of(at)), Map.of(at, 5L));
            int[][] table = {{0, 0}, {100, 1}, {101, 2}, {201, 3}, {900, 3}};
            for (int[] row : table) same(consumer.offsetsForTimes(Map.of(at, T0 + row[0])).get(at).offset(), (long) row[1]);
            want(consumer.offsetsForTimes(Map.of(at, T0 + 901)).get(at) == null, "an offset after the last time");
        }
        var specs = List.of(OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.forTimestamp(T0 + 101), OffsetSpec.maxTimestamp());
        for (int i = 0; i < specs.size(); i++)
            same(get(admin.listOffsets(Map.of(at, specs.get(i))).partitionResult(at)).offset(), List.of(0L, 5L, 2L, 3L).get(i));
        same(get(admin.listOffsets(Map.of(at, OffsetSpec.maxTimestamp())).partitionResult(at)).timestamp(), T0 + 900);
    }

    // --- admin -----------------------------------------------------------------------------------

    static void adminCases() {
        CASES.put("metadata and cluster", Client::cluster);
        CASES.put("topic: create, list, describe, delete, create again", Client::topicLife);
        CASES.put("delete by topic id", Client::deleteById);
        CASES.put("configs of a topic and of the broker", Client::configs);
        CASES.put("create returns the topic's id and configs", Client::createAnswer);
        CASES.put("validate only creates nothing", () -> {
            get(admin.createTopics(List.of(new NewTopic(RUN + "-validate", 1, (short) REPLICAS)), new CreateTopicsOptions().validateOnly(true)).all());
            want(!exists(RUN + "-validate"), "a topic");
        });
        refusedCreate("bad topic name", InvalidTopicException.class, "bad name!", 1, REPLICAS, Map.of());
        refusedCreate("no partitions", InvalidPartitionsException.class, RUN + "-zero", 0, REPLICAS, Map.of());
        refusedCreate("9 replicas", InvalidReplicationFactorException.class, RUN + "-nine", 1, 9, Map.of());
        refusedCreate("unknown config", InvalidConfigurationException.class, RUN + "-unknown", 1, REPLICAS, Map.of("no.such.key", "1"));
        refusedCreate("bad config value", InvalidConfigurationException.class, RUN + "-value", 1, REPLICAS, Map.of("retention.ms", "abc"));
        CASES.put("refused: topic exists, topic unknown", Client::existsOrNot);
        CASES.put("no authorizer, quotas, credentials, transactions", Client::unsecured);
        CASES.put("authorized operations are all", Client::authorizedOperations);
        CASES.put("move a replica to its directory", Client::replicaLogDirs);
    }

    static void refusedCreate(String name, Class<? extends Exception> type, String topic, int partitions, int replicas, Map<String, String> configs) {
        CASES.put("refused: " + name, () -> {
            refused(type, () -> create(topic, partitions, replicas, configs));
            want(!exists(topic), "a topic");
        });
    }

    static boolean exists(String topic) throws Exception { return get(admin.listTopics().names()).contains(topic); }

    interface Condition { boolean holds() throws Exception; }

    static void until(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + WAIT.toNanos();
        while (!condition.holds()) want(System.nanoTime() < deadline, "not in time: " + what);
    }

    /**
     * Waits until every broker knows the topic, because brokers answer createTopics before that. Requests the topic's
     * producers from each broker, which the client retries while the broker does not know the topic.
     */
    static void untilKnown(String topic) throws Exception {
        for (Node node : get(admin.describeCluster().nodes())) {
            try {
                get(admin.describeProducers(List.of(zero(topic)), new DescribeProducersOptions().brokerId(node.id())).partitionResult(zero(topic)));
            } catch (ExecutionException e) {
                if (!(e.getCause() instanceof NotLeaderOrFollowerException)) throw e;
            }
        }
    }

    static TopicDescription describe(String topic) throws Exception {
        return get(admin.describeTopics(List.of(topic)).allTopicNames()).get(topic);
    }

    /**
     * Returns the topic's id according to the broker that answers. Another broker may not know yet that the topic was
     * deleted or recreated.
     */
    static Optional<Uuid> idOf(String topic) throws Exception {
        try {
            return Optional.of(describe(topic).topicId());
        } catch (ExecutionException e) {
            if (!(e.getCause() instanceof UnknownTopicOrPartitionException)) throw e;
            return Optional.empty();
        }
    }

    static void delete(Collection<String> topics) throws Exception { get(admin.deleteTopics(topics).all()); }

    static void cluster() throws Exception {
        var cluster = admin.describeCluster();
        Collection<Node> nodes = get(cluster.nodes());
        want(!get(cluster.clusterId()).isEmpty() && nodes.contains(get(cluster.controller())), nodes);
        same(bootstrap, nodes.stream().sorted(Comparator.comparing(Node::id)).map(n -> n.host() + ":" + n.port()).reduce((a, b) -> a + "," + b).orElse(""));
    }

    static void topicLife() throws Exception {
        String topic = newTopic("life", 3, Map.of());
        want(exists(topic), "no topic");
        var first = describe(topic);
        same(first.partitions().stream().map(p -> p.partition()).toList(), List.of(0, 1, 2));
        want(first.partitions().stream().allMatch(p -> p.leader() != null && p.replicas().size() == REPLICAS && p.isr().size() == REPLICAS), first);
        roundTrip(topic, oddRecords());
        delete(List.of(topic));
        until("it is not listed", () -> !exists(topic));
        until("it is unknown", () -> idOf(topic).isEmpty());
        newTopic("life");
        until("it has another id", () -> idOf(topic).filter(id -> !id.equals(first.topicId())).isPresent());
        roundTrip(topic, oddRecords());
    }

    static void deleteById() throws Exception {
        String topic = newTopic("by-id");
        var id = describe(topic).topicId();
        same(get(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds()).get(id).name(), topic);
        get(admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all());
        until("it is not listed", () -> !exists(topic));
    }

    static ConfigEntry config(ConfigResource.Type type, String name, String key) throws Exception {
        var resource = new ConfigResource(type, name);
        return Optional.ofNullable(get(admin.describeConfigs(List.of(resource)).all()).get(resource).get(key)).orElseThrow();
    }

    static void configs() throws Exception {
        String topic = newTopic("configs", 1, Map.of("retention.ms", "12345000", "segment.bytes", "20000000"));
        String[][] table = {
            {"TOPIC", topic, "retention.ms", "12345000", "DYNAMIC_TOPIC_CONFIG"},
            {"TOPIC", topic, "segment.bytes", "20000000", "DYNAMIC_TOPIC_CONFIG"},
            {"TOPIC", topic, "max.message.bytes", "1048588", "DEFAULT_CONFIG"},
            {"BROKER", get(admin.describeCluster().controller()).idString(), "log.retention.hours", "168", "DEFAULT_CONFIG"},
        };
        for (String[] row : table) {
            var entry = config(ConfigResource.Type.valueOf(row[0]), row[1], row[2]);
            same(entry.value() + " " + entry.source(), row[3] + " " + row[4]);
        }
    }

    static void createAnswer() throws Exception {
        String topic = RUN + "-answer";
        var created = admin.createTopics(List.of(new NewTopic(topic, 2, (short) REPLICAS).configs(Map.of("retention.ms", "12345000"))));
        untilKnown(topic);
        same(get(created.topicId(topic)), describe(topic).topicId());
        same(get(created.numPartitions(topic)), 2);
        same(get(created.replicationFactor(topic)), REPLICAS);
        same(get(created.config(topic)).get("retention.ms").value(), "12345000");
        create(RUN + "-defaults", -1, -1, Map.of());
        untilKnown(RUN + "-defaults");
        want(!describe(RUN + "-defaults").partitions().isEmpty(), "no partitions");
    }

    static void existsOrNot() throws Exception {
        String topic = newTopic("twice");
        refused(TopicExistsException.class, () -> create(topic, 1, REPLICAS, Map.of()));
        refused(UnknownTopicOrPartitionException.class, () -> delete(List.of(RUN + "-absent")));
        refused(UnknownTopicOrPartitionException.class, () -> config(ConfigResource.Type.TOPIC, RUN + "-absent", "retention.ms"));
    }

    /** Checks how a broker responds that has no access control, quotas or credentials. */
    static void unsecured() throws Exception {
        var entry = new AccessControlEntry("User:somebody", "*", AclOperation.READ, AclPermissionType.ALLOW);
        var binding = new AclBinding(new ResourcePattern(ResourceType.TOPIC, RUN, PatternType.LITERAL), entry);
        refused(SecurityDisabledException.class, () -> get(admin.describeAcls(AclBindingFilter.ANY).values()));
        refused(SecurityDisabledException.class, () -> get(admin.createAcls(List.of(binding)).all()));
        refused(SecurityDisabledException.class, () -> get(admin.deleteAcls(List.of(AclBindingFilter.ANY)).all()));
        same(get(admin.describeClientQuotas(ClientQuotaFilter.all()).entities()), Map.of());
        same(get(admin.describeUserScramCredentials().all()), Map.of());
        refused(ResourceNotFoundException.class, () -> get(admin.describeUserScramCredentials(List.of("nobody")).description("nobody")));
        var absent = new ListTransactionsOptions().filterOnTransactionalIdPattern(RUN + "-absent.*");
        same(List.copyOf(get(admin.listTransactions(absent).all())), List.of());
    }

    static void authorizedOperations() throws Exception {
        var ofCluster = get(admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true)).authorizedOperations());
        same(ofCluster, Set.of(AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION,
            AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE));
        String topic = newTopic("authorized");
        var ofTopic = get(admin.describeTopics(List.of(topic), new DescribeTopicsOptions().includeAuthorizedOperations(true)).allTopicNames());
        same(ofTopic.get(topic).authorizedOperations(), Set.of(AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE,
            AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS));
        get(admin.alterConsumerGroupOffsets(topic, Map.of(zero(topic), new OffsetAndMetadata(0))).all()); // creates the group
        var ofGroup = get(admin.describeConsumerGroups(List.of(topic), new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true)).all());
        same(ofGroup.get(topic).authorizedOperations(), Set.of(AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE,
            AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS));
        get(admin.deleteConsumerGroups(List.of(topic)).all());
    }

    static void replicaLogDirs() throws Exception {
        String topic = newTopic("replica-log-dirs");
        until("every replica has a directory", () -> directories(topic).size() == REPLICAS);
        for (var entry : directories(topic).entrySet()) {
            int node = entry.getKey();
            move(topic, 0, node, entry.getValue());
            refused(UnknownTopicOrPartitionException.class, () -> move(topic, 9, node, entry.getValue()));
            refused(LogDirNotFoundException.class, () -> move(topic, 0, node, "/nowhere"));
        }
    }

    /** Returns the log directory of the first partition on each broker. */
    static Map<Integer, String> directories(String topic) throws Exception {
        List<Integer> nodes = get(admin.describeCluster().nodes()).stream().map(Node::id).toList();
        var directories = new HashMap<Integer, String>();
        get(admin.describeLogDirs(nodes).allDescriptions()).forEach((node, dirs) -> dirs.forEach((directory, dir) -> {
            if (dir.replicaInfos().containsKey(zero(topic))) directories.put(node, directory);
        }));
        return directories;
    }

    static void move(String topic, int partition, int node, String directory) throws Exception {
        get(admin.alterReplicaLogDirs(Map.of(new TopicPartitionReplica(topic, partition, node), directory)).all());
    }

    static void removeTopics() throws Exception {
        delete(get(admin.listTopics().names()).stream().filter(topic -> topic.startsWith(RUN)).toList());
    }
}
