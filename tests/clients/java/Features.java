// Tests the levels of transaction.version with Java's clients: `Features BOOTSTRAP`. The broker is a Fullbore that no
// other test uses, or Apache Kafka.
//
// The test uses Admin.updateFeatures and describeFeatures. At each level transactions commit, abort and are fenced.
// They are read at both isolation levels, and one is open while the level changes.

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.FeatureUpdate.UpgradeType;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.InvalidUpdateVersionException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Features {
    static final String RUN = "features-" + System.currentTimeMillis(), NAME = "transaction.version";
    static String bootstrap;
    static Admin admin;
    static int passed, failed;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap));
        run("levels are described and changed as by Kafka", Features::levels);
        int before = level();
        // At level 0, Kafka answers UNSUPPORTED_VERSION for each id that has had a transaction of level 2. Records of
        // level 0 lack a field that is set for these ids.
        boolean isOurs = System.getenv("OURS") != null;
        for (int level : isOurs ? new int[] {0, 1, 2, 1, 0, 2} : new int[] {1, 0, 1, 2, 1, 2}) {
            int from = before;
            run("transactions over a change from " + from + " to " + level, () -> transactions(from, level));
            before = level;
        }
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed > 0 ? 1 : 0);
    }

    interface Case { void run() throws Exception; }

    static void run(String name, Case test) {
        try {
            test.run();
            passed++;
            System.out.println("ok   features: " + name);
        } catch (Throwable error) {
            failed++;
            System.out.println("FAIL features: " + name + ": " + error);
            error.printStackTrace(System.out);
        }
    }

    static void update(int level, UpgradeType type, boolean validateOnly) throws Exception {
        try {
            admin.updateFeatures(Map.of(NAME, new FeatureUpdate((short) level, type)), new UpdateFeaturesOptions().validateOnly(validateOnly)).all().get();
        } catch (ExecutionException error) {
            throw (Exception) error.getCause();
        }
    }

    static void set(int level) throws Exception {
        update(level, level < level() ? UpgradeType.SAFE_DOWNGRADE : UpgradeType.UPGRADE, false);
        for (int tries = 0; level() != level; tries++) { // Kafka's brokers learn of the new level later
            if (tries == 100) throw new AssertionError("still " + level());
            Thread.sleep(50);
        }
    }

    static int level() throws Exception {
        var found = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get(NAME);
        return found == null ? 0 : found.maxVersionLevel();
    }

    static void refused(int level, UpgradeType type, String words) throws Exception {
        try {
            update(level, type, false);
        } catch (InvalidUpdateVersionException refused) {
            if (!refused.getMessage().contains(words)) throw new AssertionError(refused.getMessage());
            return;
        }
        throw new AssertionError(level + " by " + type + " is accepted");
    }

    static void levels() throws Exception {
        set(2);
        var supported = admin.describeFeatures().featureMetadata().get().supportedFeatures().get(NAME);
        if (supported.minVersion() != 0 || supported.maxVersion() != 2) throw new AssertionError(supported);
        String prefix = "The update failed for all features since the following feature had an error: Invalid update version ";
        refused(1, UpgradeType.UPGRADE, prefix + "1 for feature " + NAME + ". Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade.");
        refused(3, UpgradeType.UPGRADE, "only supports versions 0-2");
        update(0, UpgradeType.SAFE_DOWNGRADE, true);
        update(1, UpgradeType.UNSAFE_DOWNGRADE, true);
        update(2, UpgradeType.UPGRADE, true);
        if (level() != 2) throw new AssertionError("validateOnly has changed it to " + level());
        set(1);
        refused(2, UpgradeType.SAFE_DOWNGRADE, "Can't downgrade to a newer version.");
        update(1, UpgradeType.UNSAFE_DOWNGRADE, false);
        set(0);
        update(1, UpgradeType.UPGRADE, true);
        if (level() != 0) throw new AssertionError("validateOnly has changed it to " + level());
        set(2);
    }

    static KafkaProducer<String, String> producer(String id) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", id, "max.block.ms", 20_000, "linger.ms", 0);
        var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        return producer;
    }

    static void transactions(int from, int level) throws Exception {
        String topic = RUN + "-" + from + "-" + level + "-" + System.nanoTime();
        admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        var open = producer(topic + "-open");
        open.beginTransaction();
        open.send(new ProducerRecord<>(topic, "open over the change")).get();
        set(level);
        open.commitTransaction();
        var expected = new ArrayList<>(List.of("open over the change"));
        var all = new ArrayList<>(expected);
        for (var producer : List.of(open, producer(topic + "-new"))) {
            for (int n = 0; n < 6; n++) {
                producer.beginTransaction();
                for (int record = 0; record < 3; record++) producer.send(new ProducerRecord<>(topic, n + "." + record));
                producer.flush(); // an abort drops unsent records
                boolean commits = n % 3 != 1;
                if (commits) producer.commitTransaction(); else producer.abortTransaction();
                for (int record = 0; record < 3; record++) {
                    if (commits) expected.add(n + "." + record);
                    all.add(n + "." + record);
                }
            }
        }
        open.beginTransaction();
        open.send(new ProducerRecord<>(topic, "of a zombie")).get();
        all.add("of a zombie");
        var successor = producer(topic + "-open");
        try {
            open.send(new ProducerRecord<>(topic, "late"));
            open.commitTransaction();
            throw new AssertionError("a zombie commits");
        } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
            // This is the expected error.
        } catch (KafkaException error) {
            if (!(error.getCause() instanceof ProducerFencedException || error.getCause() instanceof InvalidProducerEpochException)) throw error;
        }
        open.close(Duration.ZERO);
        successor.beginTransaction();
        successor.send(new ProducerRecord<>(topic, "of its successor")).get();
        successor.commitTransaction();
        successor.close();
        expected.add("of its successor");
        all.add("of its successor");
        same(expected, read(topic, "read_committed", expected.size()));
        same(all, read(topic, "read_uncommitted", all.size()));
    }

    static void same(List<String> expected, List<String> found) {
        if (!expected.equals(found)) throw new AssertionError("expected " + expected + ", found " + found);
    }

    static List<String> read(String topic, String isolation, int count) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "isolation.level", isolation, "auto.offset.reset", "earliest");
        List<String> found = new ArrayList<>();
        var partition = new TopicPartition(topic, 0);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long deadline = System.nanoTime() + 60_000_000_000L;
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            while ((found.size() < count || consumer.position(partition) < end) && System.nanoTime() < deadline)
                for (var record : consumer.poll(Duration.ofMillis(100))) found.add(record.value());
        }
        return found;
    }
}
