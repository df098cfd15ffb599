// Prints committed offsets in `__consumer_offsets` as Kafka's own classes write them, in hexadecimal. Needs the jars of
// Kafka's tools:
//
//     java -cp 'target/clients/java-tools/*' tests/clients/java/CoordinatorRecords.java            writes coordinator.golden
//     java -cp 'target/clients/java-tools/*' tests/clients/java/CoordinatorRecords.java recode     reads records and writes them again
//
// Without arguments the lines are `record NAME KEY VALUE` and `hash GROUP PARTITIONS PARTITION`. The code of Kafka's
// coordinator makes the `written-...` records, and chooses their version. The generated classes make the `version-...`
// records, in a version chosen here. `recode` reads lines `KEY VALUE` from its input (`-` is no value), and writes
// Kafka's encoding of what it has read, or `error: ...`.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import java.util.OptionalInt;
import java.util.OptionalLong;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordHelpers;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.OffsetAndMetadata;
import org.apache.kafka.coordinator.group.generated.LegacyOffsetCommitKey;
import org.apache.kafka.coordinator.group.generated.LegacyOffsetCommitValue;
import org.apache.kafka.coordinator.group.generated.OffsetCommitKey;
import org.apache.kafka.coordinator.group.generated.OffsetCommitValue;
import org.apache.kafka.server.common.ApiMessageAndVersion;

public class CoordinatorRecords {
    static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();
    static final Uuid ID = new Uuid(0x0123456789abcdefL, 0xfedcba9876543210L);

    public static void main(String[] args) throws Exception {
        if (args.length > 0) {
            recode();
            return;
        }
        System.out.println("# Written by Kafka 4.3.1: java -cp 'target/clients/java-tools/*' tests/clients/java/CoordinatorRecords.java");
        offsets();
        hashes();
    }

    static void recode() throws Exception {
        var in = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = in.readLine()) != null; ) {
            String[] parts = line.split(" ");
            try {
                ByteBuffer value = parts[1].equals("-") ? null : ByteBuffer.wrap(HexFormat.of().parseHex(parts[1]));
                CoordinatorRecord record = SERDE.deserialize(ByteBuffer.wrap(HexFormat.of().parseHex(parts[0])), value);
                System.out.println(hex(SERDE.serializeKey(record)) + " " + hex(SERDE.serializeValue(record)));
            } catch (RuntimeException error) {
                System.out.println("error: " + error);
            }
        }
    }

    static String hex(byte[] bytes) {
        return bytes == null ? "-" : HexFormat.of().formatHex(bytes);
    }

    static void print(String name, CoordinatorRecord record) {
        System.out.println("record " + name + " " + hex(SERDE.serializeKey(record)) + " " + hex(SERDE.serializeValue(record)));
    }

    static void print(String name, ApiMessage key, ApiMessage value, int version) {
        print(name, CoordinatorRecord.record(key, new ApiMessageAndVersion(value, (short) version)));
    }

    static void offsets() {
        print("written-offset", GroupCoordinatorRecordHelpers.newOffsetCommitRecord("gr\u00fcppe", "topic", 7,
            new OffsetAndMetadata(42, OptionalInt.of(5), "where \ud83e\udd80", 1_700_000_000_123L, OptionalLong.empty(), Uuid.ZERO_UUID)));
        print("written-offset-with-topic-id", GroupCoordinatorRecordHelpers.newOffsetCommitRecord("group", "topic", 0,
            new OffsetAndMetadata(43, OptionalInt.empty(), "", 1_700_000_000_124L, OptionalLong.empty(), ID)));
        print("written-offset-that-expires", GroupCoordinatorRecordHelpers.newOffsetCommitRecord("group", "topic", 1,
            new OffsetAndMetadata(44, OptionalInt.of(6), "m", 1_700_000_000_125L, OptionalLong.of(1_700_000_999_999L), ID)));
        print("written-offset-tombstone", GroupCoordinatorRecordHelpers.newOffsetCommitTombstoneRecord("group", "topic", 2));
        for (int version = 0; version <= 4; version++) {
            OffsetCommitKey key = new OffsetCommitKey().setGroup("group").setTopic("topic").setPartition(3);
            OffsetCommitValue value = new OffsetCommitValue().setOffset(45).setLeaderEpoch(7).setMetadata("metadata")
                .setCommitTimestamp(11).setExpireTimestamp(12).setTopicId(ID);
            print("version-offset-" + version, key, value, version);
        }
        print("version-legacy-offset", new LegacyOffsetCommitKey().setGroup("group").setTopic("topic").setPartition(4),
            new LegacyOffsetCommitValue().setOffset(46).setMetadata("old").setCommitTimestamp(13), 0);
    }

    static void hashes() {
        // The hash of the third group is the smallest 32-bit integer. The fourth name has a character of two UTF-16
        // units.
        for (String group : List.of("", "group", "polygenelubricants", "gr\u00fcppe-\ud83e\udd80", "my-consumer-group-1", "connect-cluster")) {
            for (int partitions : new int[] {1, 7, 50, 1000}) {
                int partition = Utils.abs(group.hashCode()) % partitions;
                System.out.println("hash " + HexFormat.of().formatHex(group.getBytes(StandardCharsets.UTF_8)) + " " + partitions + " " + partition);
            }
        }
    }
}
