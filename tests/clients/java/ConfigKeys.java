import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.DynamicBrokerConfig;
import org.apache.kafka.server.config.DynamicConfig;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Prints every configuration key of the Apache Kafka on the class path, one per line. Tabs separate the fields:
 * resource, name, type, default, update mode, valid values, and the broker's keys for a key of a topic or group.
 */
public class ConfigKeys {
    public static void main(String[] args) {
        Map<String, String> modes = DynamicBrokerConfig.dynamicConfigUpdateModes();
        ConfigDef broker = kafka.server.KafkaConfig.configDef();
        Map<String, ConfigDef.ConfigKey> brokerKeys = new TreeMap<>(broker.configKeys());
        for (ConfigDef.ConfigKey key : DynamicConfig.Broker.names().stream().map(ConfigKeys::dynamicOnly).toList()) {
            brokerKeys.putIfAbsent(key.name, key);
        }
        brokerKeys.values().forEach(key -> print("broker", key, modes.getOrDefault(key.name, "read-only"), List.of()));
        Set<String> unlisted = new TreeSet<>(DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS);
        unlisted.removeAll(brokerKeys.keySet());
        unlisted.forEach(name -> System.err.println("dynamic, but no broker key: " + name));
        Map<String, ConfigDef.ConfigKey> topicKeys = new TreeMap<>(LogConfig.configKeys());
        topicKeys.values().forEach(key -> print("topic", key, "-", topicSynonyms(key.name)));
        new TreeMap<>(GroupConfig.CONFIG_DEF.configKeys()).values().forEach(key ->
            print("group", key, "-", GroupConfig.brokerSynonym(key.name).stream().toList()));
        new TreeMap<>(ClientMetricsConfigs.configDef().configKeys()).values().forEach(key ->
            print("client-metrics", key, "-", List.of()));
    }

    private static ConfigDef.ConfigKey dynamicOnly(String name) {
        return DynamicConfig.Broker.configKeys().get(name);
    }

    private static List<String> topicSynonyms(String name) {
        List<String> names = new ArrayList<>();
        org.apache.kafka.server.config.ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS
            .getOrDefault(name, List.of()).forEach(synonym -> names.add(synonym.name()));
        return names;
    }

    private static void print(String resource, ConfigDef.ConfigKey key, String mode, List<String> synonyms) {
        if (key.internalConfig) {
            return;
        }
        String value = key.defaultValue == ConfigDef.NO_DEFAULT_VALUE || key.defaultValue == null
            ? "unset" : "=" + ConfigDef.convertToString(key.defaultValue, key.type);
        String allowed = key.validator == null ? "" : key.validator.toString().replaceAll("\\s+", " ");
        System.out.println(String.join("\t", resource, key.name, key.type.name(), value, mode, allowed, String.join(",", synonyms)));
    }
}
