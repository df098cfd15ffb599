// Prints markers of transactions, records of `__transaction_state` and WriteTxnMarkers 2 as Kafka's own classes write
// them, in hexadecimal. Needs the jars of Kafka's tools:
//
//     java -cp 'target/clients/java-tools/*' tests/clients/java/TransactionRecords.java > crates/wire/tests/wire/transactions.golden
//
// A line is `marker NAME BATCH`, `record NAME KEY VALUE` or `message NAME BODY`, where `-` is no value. The code of
// Kafka's coordinator makes the `written-...` records, at the `transaction.version` in their name. The generated
// classes make the `version-...` records.

import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.List;
import java.util.Set;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.message.WriteTxnMarkersRequestData;
import org.apache.kafka.common.message.WriteTxnMarkersRequestData.WritableTxnMarker;
import org.apache.kafka.common.message.WriteTxnMarkersRequestData.WritableTxnMarkerTopic;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.coordinator.transaction.TransactionLog;
import org.apache.kafka.coordinator.transaction.TransactionState;
import org.apache.kafka.coordinator.transaction.TxnTransitMetadata;
import org.apache.kafka.coordinator.transaction.generated.TransactionLogValue;
import org.apache.kafka.server.common.TransactionVersion;

public class TransactionRecords {
    static final String ID = "gr\u00fcppe-\ud83e\udd80";

    public static void main(String[] args) {
        System.out.println("# Written by Kafka 4.3.1: java -cp 'target/clients/java-tools/*' tests/clients/java/TransactionRecords.java");
        marker("commit", 1_700_000_000_123L, 4_000_000_007L, 3, ControlRecordType.COMMIT, 17);
        marker("abort", 1_700_000_000_124L, 0, 32_766, ControlRecordType.ABORT, 0);
        marker("extremes", -1, Long.MAX_VALUE, Short.MAX_VALUE, ControlRecordType.COMMIT, Integer.MAX_VALUE);
        records();
        message();
    }

    static void marker(String name, long timestamp, long producerId, int epoch, ControlRecordType type, int coordinatorEpoch) {
        var marker = new EndTransactionMarker(type, coordinatorEpoch);
        print("marker " + name, MemoryRecords.withEndTransactionMarker(timestamp, producerId, (short) epoch, marker).buffer());
    }

    static void records() {
        // There is one topic with one partition, because the order of Kafka's hash tables is not reliable.
        for (TransactionVersion version : List.of(TransactionVersion.TV_0, TransactionVersion.TV_1, TransactionVersion.TV_2)) {
            short level = version.featureLevel();
            written("empty-" + level, TransactionState.EMPTY, Set.of(), -1, -1, -1, version);
            written("ongoing-" + level, TransactionState.ONGOING, Set.of(new TopicPartition("topic", 7)), 1_700_000_000_001L, -1, -1, version);
            written("complete-" + level, TransactionState.COMPLETE_COMMIT, Set.of(), 1_700_000_000_002L, 41, 43, version);
        }
        System.out.println("record written-tombstone " + HexFormat.of().formatHex(TransactionLog.keyToBytes(ID)) + " -");
        for (short version = 0; version <= 1; version++) {
            var value = new TransactionLogValue().setProducerId(42).setProducerEpoch((short) 5).setTransactionTimeoutMs(60_000)
                .setTransactionStatus(TransactionState.PREPARE_ABORT.id()).setTransactionLastUpdateTimestampMs(11)
                .setTransactionStartTimestampMs(10).setTransactionPartitions(List.of(partitions("a", 2, 0, 1), partitions("b")));
            if (version >= 1) {
                value.setPreviousProducerId(41).setNextProducerId(43).setNextProducerEpoch((short) 6).setClientTransactionVersion((short) 2);
            }
            record("version-" + version, MessageUtil.toVersionPrefixedBytes(version, value));
        }
    }

    static TransactionLogValue.PartitionsSchema partitions(String topic, Integer... ids) {
        return new TransactionLogValue.PartitionsSchema().setTopic(topic).setPartitionIds(List.of(ids));
    }

    static void written(String name, TransactionState state, Set<TopicPartition> partitions, long start, long previous, long next,
                        TransactionVersion version) {
        var metadata = new TxnTransitMetadata(42, previous, next, (short) 5, (short) 4, 60_000, state, new HashSet<>(partitions), start,
            1_700_000_000_003L, version);
        record("written-" + name, TransactionLog.valueToBytes(metadata, version));
    }

    static void record(String name, byte[] value) {
        HexFormat hex = HexFormat.of();
        System.out.println("record " + name + " " + hex.formatHex(TransactionLog.keyToBytes(ID)) + " " + hex.formatHex(value));
    }

    static void message() {
        var topic = new WritableTxnMarkerTopic().setName("topic").setPartitionIndexes(List.of(7, 8));
        var marker = new WritableTxnMarker().setProducerId(42).setProducerEpoch((short) 5).setTransactionResult(true)
            .setTopics(List.of(topic)).setCoordinatorEpoch(9).setTransactionVersion((byte) 2);
        print("message write-txn-markers-2",
            MessageUtil.toByteBufferAccessor(new WriteTxnMarkersRequestData().setMarkers(List.of(marker)), (short) 2).buffer());
    }

    static void print(String name, ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        System.out.println(name + " " + HexFormat.of().formatHex(bytes));
    }
}
