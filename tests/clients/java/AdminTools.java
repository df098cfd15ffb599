// Runs Kafka's administration tools against a broker, all in this JVM (Tools.java): `AdminTools BOOTSTRAP`. Needs the
// jars of Kafka's tools.
//
// Other tools (topics, configs, console, perf, dump) run in tools.sh. TLS is not tested here.

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;

public class AdminTools {
    interface Check { void run() throws Exception; }

    record Outcome(int status, String text) {}

    static final String RUN = "admin-tools-" + ProcessHandle.current().pid() + "-" + System.currentTimeMillis() / 1000;
    static final Map<String, Check> CASES = new LinkedHashMap<>();
    static final String TOOLS = "org.apache.kafka.tools.";
    static String bootstrap;
    static final int REPLICAS = Integer.parseInt(System.getenv().getOrDefault("REPLICAS", "1"));
    static String node;
    static int written; // a partition with records

    public static void main(String[] args) throws Exception {
        bootstrap = args[0];
        Tools.takeEnds();
        cases();
        int failed = 0;
        for (var test : CASES.entrySet()) {
            try {
                test.getValue().run();
                System.out.println("ok   admin: " + test.getKey());
            } catch (Exception | AssertionError failure) { // the other cases still run
                failed++;
                System.out.println("FAIL admin: " + test.getKey() + ": " + failure);
            }
        }
        System.out.println(CASES.size() - failed + " passed, " + failed + " failed");
        System.exit(failed == 0 ? 0 : 1);
    }

    static void cases() {
        CASES.put("kafka-topics --alter --partitions", AdminTools::morePartitions);
        CASES.put("kafka-delete-records", AdminTools::deleteRecords);
        CASES.put("kafka-log-dirs", AdminTools::logDirs);
        CASES.put("kafka-leader-election", AdminTools::elect);
        CASES.put("kafka-reassign-partitions", AdminTools::reassign);
        CASES.put("kafka-transactions describe-producers, find-hanging", AdminTools::producers);
        CASES.put("kafka-metadata-quorum", AdminTools::quorum);
        CASES.put("kafka-features", AdminTools::features);
        CASES.put("kafka-configs of topics", AdminTools::configsOfTopics);
        CASES.put("kafka-configs of brokers", AdminTools::configsOfBrokers);
        CASES.put("kafka-configs of groups", () -> configsOf("groups", "consumer.session.timeout.ms", "46000", "10"));
        CASES.put("kafka-configs of client-metrics", () -> configsOf("client-metrics", "interval.ms", "1000", "99"));
        CASES.put("kafka-client-metrics", AdminTools::clientMetrics);
        CASES.put("kafka-acls", AdminTools::acls);
        CASES.put("kafka-configs of users, clients and ips; kafka-transactions list", AdminTools::nobody);
        CASES.put("kafka-get-offsets of all topics, kafka-cluster list-endpoints", AdminTools::cluster);
        CASES.put("its topic removed", () -> done("TopicCommand", "--delete", "--topic", RUN));
    }

    static void morePartitions() throws Exception {
        done("TopicCommand", "--create", "--topic", RUN, "--partitions", "1", "--replication-factor", "" + REPLICAS);
        done("TopicCommand", "--alter", "--topic", RUN, "--partitions", "3");
        String described = done("TopicCommand", "--describe", "--topic", RUN);
        has("PartitionCount: 3", described);
        node = find("Partition: 2\\s+Leader: (\\d+)", described);
        has("currently has 3 partition\\(s\\); 2 would not be an increase", refused("TopicCommand", "--alter", "--topic", RUN, "--partitions", "2"));
        has("does not exist", refused("TopicCommand", "--alter", "--topic", RUN + "-absent", "--partitions", "2"));
    }

    static void deleteRecords() throws Exception {
        done("ProducerPerformance", "--topic", RUN, "--num-records", "300", "--record-size", "10", "--throughput", "-1");
        String latest = done("GetOffsetShell", "--topic", RUN, "--time", "-1");
        long end = offset(latest, 0) + offset(latest, 1) + offset(latest, 2);
        same(end, 300L);
        while (offset(latest, written) == 0) written++;
        long cut = offset(latest, 1) / 2;
        Path asked = file("{\"partitions\": [{\"topic\": \"%s\", \"partition\": 0, \"offset\": -1}, {\"topic\": \"%s\", \"partition\": 1, \"offset\": %d}], \"version\": 1}", RUN, RUN, cut);
        String deleted = done("DeleteRecordsCommand", "--offset-json-file", asked.toString());
        has("partition: " + RUN + "-0\\s+low_watermark: " + offset(latest, 0), deleted);
        has("partition: " + RUN + "-1\\s+low_watermark: " + cut, deleted);
        String earliest = done("GetOffsetShell", "--topic", RUN, "--time", "-2");
        same(List.of(offset(earliest, 0), offset(earliest, 1), offset(earliest, 2)), List.of(offset(latest, 0), cut, 0L));
        Path late = file("{\"partitions\": [{\"topic\": \"%s\", \"partition\": 2, \"offset\": 301}], \"version\": 1}", RUN);
        has("OffsetOutOfRange", run("DeleteRecordsCommand", "--offset-json-file", late.toString()).text);
    }

    static void logDirs() throws Exception {
        String described = done("LogDirsCommand", "--describe", "--topic-list", RUN);
        has("\"partition\":\"" + RUN + "-2\",\"size\":[0-9]+,\"offsetLag\":0,\"isFuture\":false", described);
        has("\"error\":null", described);
        same(Pattern.compile("\"partition\":\"" + RUN + "-2\"").matcher(described).results().count(), (long) REPLICAS);
    }

    static void elect() throws Exception {
        has("Valid replica already elected for partitions " + RUN + "-0", done("LeaderElectionCommand", "--election-type", "preferred", "--topic", RUN, "--partition", "0"));
        has("Valid replica already elected", done("LeaderElectionCommand", "--election-type", "unclean", "--topic", RUN, "--partition", "1"));
        done("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions");
        has("UnknownTopicOrPartition", refused("LeaderElectionCommand", "--election-type", "preferred", "--topic", RUN, "--partition", "9"));
    }

    static void reassign() throws Exception {
        String tool = "reassign.ReassignPartitionsCommand";
        Path topics = file("{\"topics\": [{\"topic\": \"%s\"}], \"version\": 1}", RUN);
        String replicas = find("Partition: 0\\s+Leader: \\d+\\s+Replicas: ([0-9,]+)", done("TopicCommand", "--describe", "--topic", RUN));
        has("Proposed partition reassignment", done(tool, "--topics-to-move-json-file", topics.toString(), "--broker-list", replicas, "--generate"));
        String of = "{\"version\": 1, \"partitions\": [{\"topic\": \"%s\", \"partition\": 0, \"replicas\": [%s], \"log_dirs\": [\"any\"" + ", \"any\"".repeat(REPLICAS - 1) + "]}]}";
        String here = file(of, RUN, replicas).toString();
        has("Successfully started partition reassignment for " + RUN + "-0", done(tool, "--reassignment-json-file", here, "--execute"));
        has("Reassignment of partition " + RUN + "-0 is completed", done(tool, "--reassignment-json-file", here, "--verify"));
        has("No partition reassignments found", done(tool, "--list"));
        has("None of the specified partition reassignments are active", done(tool, "--reassignment-json-file", here, "--cancel"));
        String first = replicas.split(",")[0];
        String directory = find("\"logDir\":\"([^\"]*)\"", done("LogDirsCommand", "--describe", "--topic-list", RUN, "--broker-list", first));
        String inDirectory = file(of.replaceFirst("any", directory), RUN, replicas).toString();
        has("Successfully started moving log directory to " + directory + " for replica " + RUN + "-0 with broker " + first, done(tool, "--reassignment-json-file", inDirectory, "--execute"));
        has("Reassignment of replica " + RUN + "-0-" + first + " completed successfully", done(tool, "--reassignment-json-file", inDirectory, "--verify"));
        has("Unknown broker id 99", refused(tool, "--reassignment-json-file", file(of, RUN, replicas.replaceFirst("\\d+", "99")).toString(), "--execute"));
    }

    static void producers() throws Exception {
        String described = done("TransactionsCommand", "describe-producers", "--topic", RUN, "--partition", "" + written);
        has("(?m)^[0-9]+\\s+0\\s+-1\\s+[0-9]+\\s+[0-9]+\\s+None", described);
        has("ProducerId", done("TransactionsCommand", "find-hanging", "--topic", RUN));
    }

    static void quorum() throws Exception {
        String status = done("MetadataQuorumCommand", "describe", "--status");
        String leader = find("LeaderId: +(\\d+)", status);
        has("CurrentVoters: +\\[.*\\{\"id\": " + leader, status);
        has("(?m)^" + leader + "\\s.*Leader", done("MetadataQuorumCommand", "describe", "--replication"));
    }

    static void features() throws Exception {
        has("metadata.version.*FinalizedVersionLevel: 4\\.3-IV0", done("FeatureCommand", "describe"));
        has("Could not upgrade no.such.feature to 1", refused("FeatureCommand", "upgrade", "--feature", "no.such.feature=1"));
    }

    static void acls() throws Exception {
        has("SecurityDisabledException: No Authorizer is configured on the broker", refused("AclCommand", "--list"));
        String[] rule = {"--allow-principal", "User:somebody", "--operation", "Read", "--topic", RUN};
        has("SecurityDisabledException: No Authorizer is configured", run("AclCommand", with(new String[] {"--add"}, rule)).text);
        has("SecurityDisabledException: No Authorizer is configured", run("AclCommand", with(new String[] {"--remove", "--force"}, rule)).text);
    }

    /** There are no quotas, credentials or transactions of any user. */
    static void nobody() throws Exception {
        for (String type : List.of("users", "clients", "ips"))
            same(done(CONFIGS, "--describe", "--entity-type", type), "");
        has("TransactionalId", done("TransactionsCommand", "list"));
    }

    static final String CONFIGS = "kafka.admin.ConfigCommand";

    static void configsOfTopics() throws Exception {
        String[] topic = {"--entity-type", "topics", "--entity-name", RUN};
        Path some = file("retention.ms=54321000%nmax.message.bytes=2000000%n");
        done(CONFIGS, with(topic, "--alter", "--add-config-file", some.toString()));
        eventually(() -> has("(?m)^ *retention.ms=54321000 sensitive=false synonyms=\\{DYNAMIC_TOPIC_CONFIG:retention.ms=54321000", done(CONFIGS, with(topic, "--describe"))));
        done(CONFIGS, with(topic, "--alter", "--delete-config", "retention.ms,max.message.bytes"));
        eventually(() -> lacks("retention.ms=54321000", done(CONFIGS, with(topic, "--describe"))));
        String all = done(CONFIGS, with(topic, "--describe", "--all"));
        for (String key : List.of("remote.storage.enable=false", "local.retention.ms=-2", "compression.gzip.level=-1", "leader.replication.throttled.replicas= ")) has(key, all);
        has("remote.storage.enable|[Tt]iered", refused(CONFIGS, with(topic, "--alter", "--add-config", "remote.storage.enable=true")));
    }

    static void configsOfBrokers() throws Exception {
        String[] this1 = {"--entity-type", "brokers", "--entity-name", node};
        String[] every = {"--entity-type", "brokers", "--entity-default"};
        done(CONFIGS, with(every, "--alter", "--add-config", "max.connections=5000,max.connections.per.ip=4000"));
        done(CONFIGS, with(this1, "--alter", "--add-config", "max.connections=6000"));
        eventually(() -> has("max.connections=6000 sensitive=false synonyms=\\{DYNAMIC_BROKER_CONFIG:max.connections=6000, DYNAMIC_DEFAULT_BROKER_CONFIG:max.connections=5000, DEFAULT_CONFIG:max.connections=2147483647", done(CONFIGS, with(this1, "--describe"))));
        has("max.connections=5000", done(CONFIGS, with(every, "--describe")));
        done(CONFIGS, with(this1, "--alter", "--delete-config", "max.connections"));
        done(CONFIGS, with(every, "--alter", "--delete-config", "max.connections,max.connections.per.ip"));
        eventually(() -> lacks("max.connections", done(CONFIGS, with(every, "--describe"))));
        String all = done(CONFIGS, with(this1, "--describe", "--all"));
        for (String key : List.of("num.io.threads=[0-9]+", "sasl.enabled.mechanisms=GSSAPI", "log.cleaner.threads=1", "transaction.max.timeout.ms=900000")) has("(?m)^ *" + key, all);
        has("node.id", refused(CONFIGS, with(this1, "--alter", "--add-config", "node.id=9")));
    }

    /** Sets a key, reads it and deletes it. The broker must refuse a bad value. */
    static void configsOf(String type, String key, String value, String bad) throws Exception {
        String[] entity = {"--entity-type", type, "--entity-name", RUN};
        done(CONFIGS, with(entity, "--alter", "--add-config", key + "=" + value));
        eventually(() -> has("(?m)^ *" + key + "=" + value + " sensitive=false synonyms=\\{DYNAMIC_[A-Z_]+:" + key + "=" + value, done(CONFIGS, with(entity, "--describe"))));
        has(key, refused(CONFIGS, with(entity, "--alter", "--add-config", key + "=" + bad)));
        done(CONFIGS, with(entity, "--alter", "--delete-config", key));
        eventually(() -> lacks(key + "=" + value, done(CONFIGS, with(entity, "--describe"))));
    }

    static String[] with(String[] entity, String... more) {
        var all = new ArrayList<>(List.of(entity));
        all.addAll(List.of(more));
        return all.toArray(String[]::new);
    }

    static void clientMetrics() throws Exception {
        done("ClientMetricsCommand", "--alter", "--name", RUN, "--metrics", "org.apache.kafka.", "--interval", "1000", "--match", "client_id=nobody");
        eventually(() -> has(RUN, done("ClientMetricsCommand", "--list")));
        has("interval.ms=1000[\\s\\S]*match=client_id=nobody[\\s\\S]*metrics=org.apache.kafka.", done("ClientMetricsCommand", "--describe", "--name", RUN));
        done("ClientMetricsCommand", "--delete", "--name", RUN);
    }

    static void cluster() throws Exception {
        has(RUN + ":2:[0-9]+", done("GetOffsetShell"));
        has(node + " .*unfenced", done("ClusterTool", "list-endpoints", "--include-fenced-brokers"));
    }

    /** Runs a tool, which must succeed, and returns its output. */
    static String done(String tool, String... args) throws Exception {
        Outcome outcome = run(tool, args);
        if (outcome.status != 0) throw new AssertionError(tool + " " + List.of(args) + " ended with " + outcome.status + ": " + outcome.text);
        return outcome.text;
    }

    /** Runs a tool, which must fail, and returns its output. */
    static String refused(String tool, String... args) throws Exception {
        Outcome outcome = run(tool, args);
        if (outcome.status == 0) throw new AssertionError(tool + " " + List.of(args) + " succeeded: " + outcome.text);
        return outcome.text;
    }

    static Outcome run(String tool, String... args) throws Exception {
        List<String> all = new ArrayList<>(List.of(args));
        int at = tool.equals("ClusterTool") ? all.size() : 0; // the other tools take the bootstrap server first
        all.addAll(at, List.of("--bootstrap-server", bootstrap));
        var text = new ByteArrayOutputStream();
        var capture = new PrintStream(text, true, StandardCharsets.UTF_8);
        PrintStream out = System.out, err = System.err;
        System.setOut(capture);
        System.setErr(capture);
        try {
            int status = Tools.run(tool.startsWith("kafka.") ? tool : TOOLS + tool, all.toArray(String[]::new));
            return new Outcome(status, text.toString(StandardCharsets.UTF_8));
        } finally {
            System.setOut(out);
            System.setErr(err);
        }
    }

    static Path file(String format, Object... args) throws Exception {
        Path file = Files.createTempFile("admin-tools", ".json");
        file.toFile().deleteOnExit();
        return Files.writeString(file, format.formatted(args));
    }

    /** Returns the offset of one partition in the output of kafka-get-offsets. */
    static long offset(String listed, int partition) {
        var found = Pattern.compile("(?m)^" + RUN + ":" + partition + ":(\\d+)$").matcher(listed);
        if (!found.find()) throw new AssertionError("no partition " + partition + " in: " + listed);
        return Long.parseLong(found.group(1));
    }

    /** Returns the first group of the first match. */
    static String find(String pattern, String text) {
        return Pattern.compile(pattern).matcher(text).results().findFirst().orElseThrow(() -> new AssertionError("no " + pattern + " in: " + text)).group(1);
    }

    static void has(String pattern, String text) {
        if (!Pattern.compile(pattern).matcher(text).find()) throw new AssertionError("no " + pattern + " in: " + text);
    }

    static void lacks(String pattern, String text) {
        if (Pattern.compile(pattern).matcher(text).find()) throw new AssertionError(pattern + " in: " + text);
    }

    static void same(Object found, Object expected) {
        if (!found.equals(expected)) throw new AssertionError("found " + found + ", expected " + expected);
    }

    /** Repeats a check for up to a minute, because Apache Kafka answers a change before every request shows it. */
    static void eventually(Check check) throws Exception {
        long until = System.nanoTime() + 60_000_000_000L;
        while (true) {
            try {
                check.run();
                return;
            } catch (AssertionError failure) {
                if (System.nanoTime() > until) throw failure;
            }
        }
    }
}
