import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Kafka's ConsumerPerformance with `assign` instead of `subscribe`, so that it also measures a broker without consumer
 * groups. Arguments: BOOTSTRAP TOPIC RECORDS. Prints records, MB, seconds and MB/s from the first poll's return on.
 */
public class AssignedConsumerPerformance {
    public static void main(String[] args) {
        long wanted = Long.parseLong(args[2]);
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[0]);
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        // The values ConsumerPerformance sets.
        properties.put("receive.buffer.bytes", "2097152");
        properties.put("max.partition.fetch.bytes", "1048576");
        properties.put("check.crcs", "false");
        try (var consumer = new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (PartitionInfo p : consumer.partitionsFor(args[1])) partitions.add(new TopicPartition(args[1], p.partition()));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long records = 0, bytes = 0, start = System.nanoTime(), last = start;
            while (records < wanted && System.nanoTime() - last < 30_000_000_000L) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    records++;
                    bytes += (record.key() == null ? 0 : record.key().length) + (record.value() == null ? 0 : record.value().length);
                    last = System.nanoTime();
                }
            }
            double seconds = (last - start) / 1e9, mb = bytes / 1048576.0;
            System.out.printf(Locale.ROOT, "%d %.2f %.3f %.2f%n", records, mb, seconds, mb / seconds);
            System.exit(records >= wanted ? 0 : 1);
        }
    }
}
