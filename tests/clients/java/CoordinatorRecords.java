// The records of `__consumer_offsets` as Kafka's own classes write them, in hexadecimal, with the jars of Kafka's
// tools:
//
//     java -cp 'target/clients/java-tools/*' tests/clients/java/CoordinatorRecords.java            writes coordinator.golden
//     java -cp 'target/clients/java-tools/*' tests/clients/java/CoordinatorRecords.java recode     reads records and writes them again
//
// A line of the first is `record NAME KEY VALUE` or `hash GROUP PARTITIONS PARTITION`. `written-...` are made by
// what Kafka's coordinator makes its records with, in the version that it chooses; `version-...` by the generated
// classes, in a version chosen here. `recode` takes lines `KEY VALUE` from its input, `-` being no value, and writes
// what Kafka reads and writes again, or `error: ...`.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.JoinGroupRequestData.JoinGroupRequestProtocol;
import org.apache.kafka.common.message.JoinGroupRequestData.JoinGroupRequestProtocolCollection;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.common.runtime.CoordinatorRecord;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordHelpers;
import org.apache.kafka.coordinator.group.GroupCoordinatorRecordSerde;
import org.apache.kafka.coordinator.group.OffsetAndMetadata;
import org.apache.kafka.coordinator.group.classic.ClassicGroup;
import org.apache.kafka.coordinator.group.classic.ClassicGroupMember;
import org.apache.kafka.coordinator.group.classic.ClassicGroupState;
import org.apache.kafka.coordinator.group.generated.*;
import org.apache.kafka.coordinator.group.modern.MemberState;
import org.apache.kafka.coordinator.group.modern.consumer.ConsumerGroupMember;
import org.apache.kafka.coordinator.group.modern.consumer.ResolvedRegularExpression;
import org.apache.kafka.server.common.ApiMessageAndVersion;

public class CoordinatorRecords {
    static final GroupCoordinatorRecordSerde SERDE = new GroupCoordinatorRecordSerde();
    static final Uuid ID = new Uuid(0x0123456789abcdefL, 0xfedcba9876543210L);
    static final Uuid OTHER = new Uuid(1, 2);

    public static void main(String[] args) throws Exception {
        if (args.length > 0) {
            recode();
            return;
        }
        System.out.println("# Written by Kafka 4.3.1: java -cp 'target/clients/java-tools/*' tests/clients/java/CoordinatorRecords.java");
        offsets();
        classic();
        consumer();
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

    static GroupMetadataValue.MemberMetadata member(String id) {
        return new GroupMetadataValue.MemberMetadata().setMemberId(id).setClientId("client").setClientHost("/127.0.0.1")
            .setRebalanceTimeout(300_000).setSessionTimeout(45_000).setSubscription(new byte[] {0, 1, 2}).setAssignment(new byte[] {3});
    }

    static void classic() {
        for (int version = 0; version <= 4; version++) {
            GroupMetadataValue value = new GroupMetadataValue().setProtocolType("consumer").setGeneration(9).setProtocol("range")
                .setLeader("m1").setCurrentStateTimestamp(1_700_000_000_126L)
                .setMembers(List.of(member("m1").setGroupInstanceId("i1"), member("m2").setSubscription(new byte[0])));
            print("version-group-" + version, new GroupMetadataKey().setGroup("group"), value, version);
        }
        // The time of its state is not set: a group that was never kept has none.
        ClassicGroup group = new ClassicGroup(new LogContext(), "group", ClassicGroupState.EMPTY, Time.SYSTEM, 0, Optional.empty(),
            Optional.empty(), Optional.empty(), Optional.empty());
        print("written-group-empty", GroupCoordinatorRecordHelpers.newEmptyGroupMetadataRecord(group));
        var protocols = new JoinGroupRequestProtocolCollection();
        protocols.add(new JoinGroupRequestProtocol().setName("range").setMetadata(new byte[] {0, 1, 2}));
        ClassicGroup joined = new ClassicGroup(new LogContext(), "group", ClassicGroupState.STABLE, Time.SYSTEM, 9, Optional.of("consumer"),
            Optional.of("range"), Optional.of("m1"), Optional.of(1_700_000_000_126L));
        joined.add(new ClassicGroupMember("m1", Optional.of("i1"), "client", "/127.0.0.1", 300_000, 45_000, "consumer", protocols));
        print("written-group", GroupCoordinatorRecordHelpers.newGroupMetadataRecord(joined, Map.of("m1", new byte[] {3})));
        print("version-group-empty", new GroupMetadataKey().setGroup("group"), new GroupMetadataValue().setProtocolType("")
            .setGeneration(0).setProtocol(null).setLeader(null).setMembers(List.of()), 3);
        print("written-group-tombstone", GroupCoordinatorRecordHelpers.newGroupMetadataTombstoneRecord("group"));
    }

    static void consumer() {
        print("version-consumer-group", new ConsumerGroupMetadataKey().setGroupId("group"), new ConsumerGroupMetadataValue().setEpoch(10), 0);
        print("written-consumer-group", GroupCoordinatorRecordHelpers.newConsumerGroupEpochRecord("group", 11, 0x1122334455667788L));
        print("written-consumer-group-tombstone", GroupCoordinatorRecordHelpers.newConsumerGroupEpochTombstoneRecord("group"));
        print("version-partition-metadata", new ConsumerGroupPartitionMetadataKey().setGroupId("group"),
            new ConsumerGroupPartitionMetadataValue().setTopics(List.of(new ConsumerGroupPartitionMetadataValue.TopicMetadata()
                .setTopicId(ID).setTopicName("topic").setNumPartitions(2).setPartitionMetadata(List.of(
                    new ConsumerGroupPartitionMetadataValue.PartitionMetadata().setPartition(1).setRacks(List.of("a", "b")))))), 0);
        print("written-partition-metadata-tombstone",
            GroupCoordinatorRecordHelpers.newConsumerGroupSubscriptionMetadataTombstoneRecord("group"));
        ConsumerGroupMemberMetadataKey member = new ConsumerGroupMemberMetadataKey().setGroupId("group").setMemberId("member");
        print("version-member", member, new ConsumerGroupMemberMetadataValue().setInstanceId(null).setRackId(null).setClientId("client")
            .setClientHost("/h").setSubscribedTopicNames(List.of()).setSubscribedTopicRegex(null).setRebalanceTimeoutMs(1)
            .setServerAssignor(null), 0);
        print("version-member-with-all", member, new ConsumerGroupMemberMetadataValue().setInstanceId("i").setRackId("r").setClientId("client")
            .setClientHost("/h").setSubscribedTopicNames(List.of("a", "b")).setSubscribedTopicRegex("t.*").setRebalanceTimeoutMs(300_000)
            .setServerAssignor("uniform").setClassicMemberMetadata(new ConsumerGroupMemberMetadataValue.ClassicMemberMetadata()
                .setSessionTimeoutMs(45_000).setSupportedProtocols(List.of(new ConsumerGroupMemberMetadataValue.ClassicProtocol()
                    .setName("range").setMetadata(new byte[] {1, 2})))), 0);
        print("written-member", GroupCoordinatorRecordHelpers.newConsumerGroupMemberSubscriptionRecord("group",
            new ConsumerGroupMember.Builder("member").setInstanceId("i").setClientId("client").setClientHost("/h")
                .setSubscribedTopicNames(List.of("a")).setSubscribedTopicRegex("").setRebalanceTimeoutMs(300_000).build()));
        print("written-member-tombstone",
            GroupCoordinatorRecordHelpers.newConsumerGroupMemberSubscriptionTombstoneRecord("group", "member"));
        print("written-target", GroupCoordinatorRecordHelpers.newConsumerGroupTargetAssignmentMetadataRecord("group", 12, 1_700_000_000_127L));
        print("version-target-without-time", new ConsumerGroupTargetAssignmentMetadataKey().setGroupId("group"),
            new ConsumerGroupTargetAssignmentMetadataValue().setAssignmentEpoch(12), 0);
        Map<Uuid, Set<Integer>> partitions = new LinkedHashMap<>();
        partitions.put(ID, new LinkedHashSet<>(List.of(0, 5)));
        partitions.put(OTHER, new LinkedHashSet<>(List.of(1)));
        print("written-target-member", GroupCoordinatorRecordHelpers.newConsumerGroupTargetAssignmentRecord("group", "member", partitions));
        print("written-target-member-tombstone",
            GroupCoordinatorRecordHelpers.newConsumerGroupTargetAssignmentTombstoneRecord("group", "member"));
        ConsumerGroupCurrentMemberAssignmentKey current =
            new ConsumerGroupCurrentMemberAssignmentKey().setGroupId("group").setMemberId("member");
        var has = new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions().setTopicId(ID).setPartitions(List.of(0, 5));
        var gives = new ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions().setTopicId(OTHER).setPartitions(List.of(1));
        print("version-current", current, new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(13).setPreviousMemberEpoch(12)
            .setState((byte) 1).setAssignedPartitions(List.of(has)).setPartitionsPendingRevocation(List.of(gives)), 0);
        print("version-current-with-null-epochs", current, new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(13)
            .setPreviousMemberEpoch(12).setState((byte) 1).setAssignedPartitions(List.of(has.duplicate().setAssignmentEpochs(null)))
            .setPartitionsPendingRevocation(List.of(gives.duplicate().setAssignmentEpochs(null))), 0);
        print("version-current-with-epochs", current, new ConsumerGroupCurrentMemberAssignmentValue().setMemberEpoch(13)
            .setPreviousMemberEpoch(12).setState((byte) 0).setAssignedPartitions(List.of(has.setAssignmentEpochs(List.of(12, 13))))
            .setPartitionsPendingRevocation(List.of(gives.setAssignmentEpochs(List.of()))), 0);
        print("written-current", GroupCoordinatorRecordHelpers.newConsumerGroupCurrentAssignmentRecord("group",
            new ConsumerGroupMember.Builder("member").setMemberEpoch(13).setPreviousMemberEpoch(12).setState(MemberState.UNREVOKED_PARTITIONS)
                .setAssignedPartitions(Map.of(ID, new LinkedHashMap<>(Map.of(5, 12))))
                .setPartitionsPendingRevocation(Map.of(OTHER, new LinkedHashMap<>(Map.of(1, 11)))).build()));
        print("written-current-tombstone",
            GroupCoordinatorRecordHelpers.newConsumerGroupCurrentAssignmentTombstoneRecord("group", "member"));
        print("version-regex", new ConsumerGroupRegularExpressionKey().setGroupId("group").setRegularExpression("t.*"),
            new ConsumerGroupRegularExpressionValue().setTopics(List.of("ta", "tb")).setVersion(14).setTimestamp(15), 0);
        print("written-regex", GroupCoordinatorRecordHelpers.newConsumerGroupRegularExpressionRecord("group", "t.*",
            new ResolvedRegularExpression(Set.of("ta"), 14, 15)));
        print("written-regex-tombstone", GroupCoordinatorRecordHelpers.newConsumerGroupRegularExpressionTombstone("group", "t.*"));
    }

    static void hashes() {
        // The third group's hash is the least number, the fourth has characters of two units.
        for (String group : List.of("", "group", "polygenelubricants", "gr\u00fcppe-\ud83e\udd80", "my-consumer-group-1", "connect-cluster")) {
            for (int partitions : new int[] {1, 7, 50, 1000}) {
                int partition = Utils.abs(group.hashCode()) % partitions;
                System.out.println("hash " + HexFormat.of().formatHex(group.getBytes(StandardCharsets.UTF_8)) + " " + partitions + " " + partition);
            }
        }
    }
}
