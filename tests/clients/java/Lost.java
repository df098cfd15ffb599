// Java's idempotent producer for python/lost.py and groups/chaos.py: `Lost BOOTSTRAP TOPIC [PARTITIONS PER_SECOND]`.
//
// Sends 0, 1, 2 ... to the partitions in turns until its input ends. Prints a line for each record that is acknowledged
// or fails.

import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Lost {
    static volatile boolean stopping = false;

    public static void main(String[] args) throws Exception {
        var input = new Thread(() -> {
            try {
                while (System.in.read() >= 0) { }
            } catch (java.io.IOException closed) { } // an error also ends the input
            stopping = true;
        });
        input.setDaemon(true);
        input.start();
        int partitions = args.length > 2 ? Integer.parseInt(args[2]) : 1;
        long betweenNs = args.length > 3 ? 1_000_000_000L / Integer.parseInt(args[3]) : 0;
        // Batches are small, so five requests are always in flight.
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "enable.idempotence", true, "acks", "all",
            "max.in.flight.requests.per.connection", 5, "batch.size", 100, "linger.ms", 0, "reconnect.backoff.max.ms", 200);
        var unanswered = new Semaphore(200);
        long sent = 0, began = System.nanoTime();
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (; !stopping; sent++) {
                unanswered.acquire();
                LockSupport.parkNanos(began + sent * betweenNs - System.nanoTime());
                String value = "" + sent;
                producer.send(new ProducerRecord<>(args[1], (int) (sent % partitions), null, value), (metadata, error) -> {
                    System.out.println(error == null ? "acked " + value : "failed " + value + " " + error);
                    unanswered.release();
                });
            }
            producer.flush();
        }
        System.out.println("sent " + sent + " left " + (200 - unanswered.availablePermits()));
    }
}
