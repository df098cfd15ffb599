// Runs Java's transactional producers on a cluster whose brokers are killed: `Transactions BOOTSTRAP`, with $ONE_BROKER
// to kill and start a broker.
//
// Four producers write transactions of five records to six partitions. They commit most of them and abort the others,
// while each broker is killed with SIGKILL and started again. Afterwards a consumer at read_committed must read each
// record of a committed transaction once, and no record of an aborted one. If a transaction's end gets no response, the
// consumer must read all records of the transaction or none. The consumer must reach the end of each partition within
// the transaction timeout and 20 s.

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class Transactions {
    static final String RUN = "transactions-" + System.currentTimeMillis();
    static final int PARTITIONS = 6, PRODUCERS = 4, RECORDS = 5, TIMEOUT_MS = 10_000;

    enum End { COMMITTED, ABORTED, UNSURE }

    static String bootstrap;
    static final Map<String, End> ends = new ConcurrentHashMap<>();
    static volatile boolean stopping = false;

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        try (var admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            admin.createTopics(List.of(new NewTopic(RUN, PARTITIONS, (short) 3))).all().get();
        }
        var threads = Executors.newCachedThreadPool();
        var writing = IntStream.range(0, PRODUCERS).mapToObj(n -> threads.submit((Callable<Void>) () -> write(n))).toList();
        for (int broker = 1; broker <= 3; broker++) {
            more(200);
            broker("kill", broker);
            more(200); // with two brokers of three
            broker("start", broker);
        }
        more(200);
        stopping = true;
        for (var writer : writing) writer.get();
        int failed = check("transactions under kills of each broker", read());
        System.out.println((1 - failed) + " passed, " + failed + " failed");
        System.exit(failed);
    }

    /** Waits until `count` more transactions have ended. */
    static void more(int count) throws InterruptedException {
        int until = ends.size() + count;
        while (ends.size() < until) Thread.sleep(20);
    }

    static void broker(String what, int number) throws Exception {
        int status = new ProcessBuilder(System.getenv("ONE_BROKER"), what, "" + number).inheritIO().start().waitFor();
        if (status != 0) throw new IllegalStateException(what + " " + number + " ends with " + status);
    }

    static KafkaProducer<String, String> producer(int number) {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "transactional.id", RUN + "-" + number,
            "transaction.timeout.ms", TIMEOUT_MS, "delivery.timeout.ms", 20_000, "request.timeout.ms", 5_000, "max.block.ms", 20_000, "linger.ms", 0);
        while (true) {
            var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
            try {
                producer.initTransactions();
                return producer;
            } catch (KafkaException again) { // no broker coordinates it yet
                producer.close(Duration.ZERO);
            }
        }
    }

    static Void write(int number) {
        var random = new Random(number);
        var producer = producer(number);
        for (int count = 0; !stopping; count++) {
            String transaction = number + "." + count;
            boolean commits = random.nextInt(5) != 0;
            var end = End.UNSURE;
            try {
                producer.beginTransaction();
                for (int record = 0; record < RECORDS; record++)
                    producer.send(new ProducerRecord<>(RUN, random.nextInt(PARTITIONS), null, transaction + ":" + record));
                if (commits) producer.commitTransaction(); else producer.abortTransaction();
                end = commits ? End.COMMITTED : End.ABORTED;
            } catch (KafkaException unsure) {
                producer.close(Duration.ZERO);
                producer = producer(number);
            }
            ends.put(transaction, end);
        }
        producer.close();
        return null;
    }

    /** Returns how often each record was read, by transaction. Returns null if the end was not reached in time. */
    static Map<String, Map<String, Integer>> read() {
        Map<String, Object> settings = Map.of("bootstrap.servers", bootstrap, "isolation.level", "read_committed");
        var partitions = IntStream.range(0, PARTITIONS).mapToObj(n -> new TopicPartition(RUN, n)).toList();
        Map<String, Map<String, Integer>> found = new HashMap<>();
        long deadline = System.nanoTime() + (TIMEOUT_MS + 20_000) * 1_000_000L;
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
             var plain = new KafkaConsumer<>(Map.<String, Object>of("bootstrap.servers", bootstrap), new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            var all = plain.endOffsets(partitions);
            while (partitions.stream().anyMatch(partition -> consumer.position(partition) < all.get(partition))) {
                if (System.nanoTime() > deadline) return null;
                for (var record : consumer.poll(Duration.ofMillis(200)))
                    found.computeIfAbsent(record.value().split(":")[0], t -> new HashMap<>()).merge(record.value(), 1, Integer::sum);
            }
        }
        return found;
    }

    static int check(String name, Map<String, Map<String, Integer>> found) {
        if (found == null) {
            System.out.println("FAIL transactions: " + name + ": an open transaction blocks a partition");
            return 1;
        }
        var wrong = ends.entrySet().stream().filter(entry -> {
            var records = found.getOrDefault(entry.getKey(), Map.of());
            boolean isWhole = records.size() == RECORDS && Set.copyOf(records.values()).equals(Set.of(1));
            return switch (entry.getValue()) {
                case COMMITTED -> !isWhole;
                case ABORTED -> !records.isEmpty();
                case UNSURE -> !isWhole && !records.isEmpty();
            };
        }).limit(5).map(entry -> entry + " " + found.get(entry.getKey())).toList();
        var unsure = ends.values().stream().filter(end -> end == End.UNSURE).count();
        System.out.println((wrong.isEmpty() ? "ok   " : "FAIL ") + "transactions: " + name + ": " + ends.size() + " transactions, " + unsure + " without a response " + wrong);
        return wrong.isEmpty() ? 0 : 1;
    }
}
