import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/**
 * Transactions of Java's clients, for bench/cases/transactions.py:
 *
 *   rate BOOTSTRAP TOPIC PRODUCERS RECORDS SIZE SECONDS     at full speed, each producer on its own thread
 *   paced BOOTSTRAP TOPIC RATE SECONDS                      RATE transactions of one record a second, and a
 *                                                           consumer at read_committed
 *   copy BOOTSTRAP FROM TO RECORDS TRANSACTION              consume, produce, commit with offsets
 *   fill BOOTSTRAP TOPIC RECORDS SIZE TRANSACTION ABORTED   every ABORTED-th transaction is aborted; 0: none
 *
 * The properties of the producer follow as KEY=VALUE. run=NAME is the prefix of the transactional ids of "rate". The
 * first seconds are not counted. An aborted transaction is repeated, and its time is that of both attempts.
 */
public class TransactionBench {
  static final long WARM_NS = 3_000_000_000L;
  /** How many seconds `paced` warms up. At twenty transactions a second, the JVM compiles the client's code late. */
  static final int WARM_PACED_S = 5;
  static Properties more = new Properties();

  public static void main(String[] args) throws Exception {
    List<String> words = new ArrayList<>();
    for (String word : args) {
      int at = word.indexOf('=');
      if (at > 0) more.put(word.substring(0, at), word.substring(at + 1));
      else words.add(word);
    }
    String[] a = words.toArray(new String[0]);
    switch (a[0]) {
      case "rate" -> rate(a[1], a[2], number(a[3]), number(a[4]), number(a[5]), number(a[6]));
      case "paced" -> paced(a[1], a[2], number(a[3]), number(a[4]));
      case "copy" -> copy(a[1], a[2], a[3], number(a[4]), number(a[5]));
      case "fill" -> fill(a[1], a[2], number(a[3]), number(a[4]), number(a[5]), number(a[6]));
      default -> throw new IllegalArgumentException(a[0]);
    }
  }

  static int number(String word) {
    return Integer.parseInt(word);
  }

  static KafkaProducer<byte[], byte[]> producer(String bootstrap, String id) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", bootstrap);
    properties.put("transactional.id", id);
    properties.putAll(more);
    return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
  }

  static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group, int most) {
    Properties properties = new Properties();
    properties.put("bootstrap.servers", bootstrap);
    properties.put("group.id", group);
    properties.put("isolation.level", "read_committed");
    properties.put("auto.offset.reset", "earliest");
    properties.put("enable.auto.commit", "false");
    properties.put("max.poll.records", most);
    return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }

  static String percentiles(List<Long> taken) {
    Collections.sort(taken);
    int count = taken.size();
    if (count == 0) return "p50 0 ms, p99 0 ms, max 0 ms";
    double at50 = taken.get(count / 2) / 1e6, at99 = taken.get(Math.min(count - 1, (int) (count * 0.99))) / 1e6;
    return String.format(Locale.ROOT, "p50 %.3f ms, p99 %.3f ms, max %.3f ms", at50, at99, taken.get(count - 1) / 1e6);
  }

  static void rate(String bootstrap, String topic, int producers, int records, int size, int seconds) throws Exception {
    String run = (String) Optional.ofNullable(more.remove("run")).orElse(UUID.randomUUID().toString());
    List<KafkaProducer<byte[], byte[]>> all = new ArrayList<>();
    for (int i = 0; i < producers; i++) {
      all.add(producer(bootstrap, run + "-" + i));
      all.get(i).initTransactions();
    }
    long from = System.nanoTime() + WARM_NS, until = from + seconds * 1_000_000_000L;
    ExecutorService threads = Executors.newCachedThreadPool();
    List<Future<List<Long>>> results = new ArrayList<>();
    for (int i = 0; i < producers; i++) {
      String id = run + "-" + i;
      KafkaProducer<byte[], byte[]> first = all.get(i);
      results.add(threads.submit(() -> commitsOf(first, bootstrap, id, topic, records, size, from, until)));
    }
    List<Long> taken = new ArrayList<>();
    for (Future<List<Long>> result : results) taken.addAll(result.get());
    threads.shutdown();
    System.out.printf(Locale.ROOT, "%.1f transactions/s, commit %s%n", taken.size() / (double) seconds, percentiles(taken));
  }

  /** Commits transactions of one producer one after another. Returns how long each commit took that lies between the
   * two times. */
  static List<Long> commitsOf(KafkaProducer<byte[], byte[]> first, String bootstrap, String id, String topic, int records, int size,
      long from, long until) {
    KafkaProducer<byte[], byte[]> one = first;
    List<Long> taken = new ArrayList<>();
    byte[] value = new byte[size];
    while (System.nanoTime() < until) {
      long begun = System.nanoTime(), asked = begun;
      for (boolean isCommitted = false, isRepeated = false; !isCommitted; isRepeated = true) {
        one.beginTransaction();
        for (int i = 0; i < records; i++) one.send(new ProducerRecord<>(topic, value));
        asked = isRepeated ? begun : System.nanoTime();
        try {
          isCommitted = commits(one);
        } catch (InvalidTxnStateException raced) {
          // The client has sent EndTxn before its batches, because its `Sender` calls hasIncomplete() outside of the
          // lock of nextRequest().
          one.close();
          one = producer(bootstrap, id);
          one.initTransactions();
        }
      }
      long now = System.nanoTime();
      if (asked >= from && now <= until) taken.add(now - asked);
    }
    one.close();
    return taken;
  }

  /** Returns false if the transaction had to be aborted. */
  static boolean commits(KafkaProducer<byte[], byte[]> producer) {
    while (true) {
      try {
        producer.commitTransaction();
        return true;
      } catch (org.apache.kafka.common.errors.TimeoutException again) {
        // The outcome is not known, so the same call is repeated.
      } catch (ProducerFencedException | OutOfOrderSequenceException | AuthorizationException | InvalidTxnStateException fatal) {
        throw fatal;
      } catch (KafkaException abortable) {
        producer.abortTransaction();
        return false;
      }
    }
  }

  static void paced(String bootstrap, String topic, int rate, int seconds) throws Exception {
    List<Long> commits = new ArrayList<>(), polls = Collections.synchronizedList(new ArrayList<>());
    int count = rate * seconds, warm = rate * WARM_PACED_S;
    long[] sent = new long[count + warm];
    CountDownLatch ready = new CountDownLatch(1), done = new CountDownLatch(1);
    Thread reader = new Thread(() -> {
      KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, "paced-" + topic, 500);
      consumer.assign(List.of(new TopicPartition(topic, 0)));
      consumer.seekToBeginning(consumer.assignment());
      consumer.position(new TopicPartition(topic, 0));
      ready.countDown();
      for (int got = 0; got < sent.length; ) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
          int number = Integer.parseInt(new String(record.value()));
          if (number < 0) continue;
          if (number >= warm) polls.add(System.nanoTime() - sent[number]);
          got++;
        }
      }
      consumer.close();
      done.countDown();
    });
    reader.start();
    ready.await();
    KafkaProducer<byte[], byte[]> producer = producer(bootstrap, "paced-" + UUID.randomUUID());
    producer.initTransactions();
    // At full speed first: at twenty transactions a second the code of client and broker is compiled late.
    for (long until = System.nanoTime() + WARM_NS; System.nanoTime() < until; ) commitOne(producer, topic, -1);
    long begin = System.nanoTime();
    for (int number = 0; number < sent.length; number++) {
      long due = begin + number * 1_000_000_000L / rate;
      for (long left; (left = due - System.nanoTime()) > 0; ) Thread.sleep(Math.max(1, left / 1_000_000));
      sent[number] = System.nanoTime();
      long took = commitOne(producer, topic, number);
      if (number >= warm) commits.add(took);
    }
    done.await();
    producer.close();
    System.out.println("commit " + percentiles(commits));
    System.out.println("send to poll " + percentiles(polls));
  }

  /** Sends a record in a transaction of its own, and returns the duration of the commit in nanoseconds. */
  static long commitOne(KafkaProducer<byte[], byte[]> producer, String topic, int number) {
    producer.beginTransaction();
    producer.send(new ProducerRecord<>(topic, 0, null, ("" + number).getBytes()));
    long asked = System.nanoTime();
    producer.commitTransaction();
    return System.nanoTime() - asked;
  }

  static void copy(String bootstrap, String from, String to, int count, int most) {
    KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, "copy-" + to, most);
    KafkaProducer<byte[], byte[]> producer = producer(bootstrap, "copy-" + to);
    producer.initTransactions();
    consumer.subscribe(List.of(from));
    int copied = 0, warm = count / 5, counted = 0;
    long began = 0;
    while (copied < count) {
      ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
      if (records.isEmpty()) continue;
      producer.beginTransaction();
      Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
      for (ConsumerRecord<byte[], byte[]> record : records) {
        producer.send(new ProducerRecord<>(to, record.partition(), record.key(), record.value()));
        offsets.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
      }
      producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
      producer.commitTransaction();
      copied += records.count();
      if (began != 0) counted += records.count();
      else if (copied >= warm) began = System.nanoTime();
    }
    System.out.printf(Locale.ROOT, "%.1f records/s%n", counted * 1e9 / (System.nanoTime() - began));
    consumer.close();
    producer.close();
  }

  static void fill(String bootstrap, String topic, int count, int size, int each, int aborted) {
    KafkaProducer<byte[], byte[]> producer = producer(bootstrap, "fill-" + topic);
    producer.initTransactions();
    byte[] value = new byte[size];
    long transactions = 0;
    for (int written = 0; written < count; written += each) {
      producer.beginTransaction();
      for (int i = 0; i < each; i++) producer.send(new ProducerRecord<>(topic, value));
      transactions++;
      if (aborted > 0 && transactions % aborted == 0) {
        producer.flush();
        producer.abortTransaction();
      } else {
        producer.commitTransaction();
      }
    }
    producer.close();
    System.out.println("filled");
  }
}
