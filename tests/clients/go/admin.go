// Topics, configurations and the cluster, by kadm.
//
// Records are tested in client.go, which also has the helpers of all cases.
package main

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func adminCases() []testCase {
	abc, one := "abc", "1"
	refusals := []struct {
		name       string
		code       *kerr.Error
		topic      string
		partitions int32
		replicas   int16
		configs    map[string]*string
	}{
		{"bad topic name", kerr.InvalidTopicException, "bad name!", 1, replicas, nil},
		{"no partitions", kerr.InvalidPartitions, run + "-zero", 0, replicas, nil},
		{"9 replicas", kerr.InvalidReplicationFactor, run + "-nine", 1, 9, nil},
		{"unknown config", kerr.InvalidConfig, run + "-unknown", 1, replicas, map[string]*string{"no.such.key": &one}},
		{"bad config value", kerr.InvalidConfig, run + "-value", 1, replicas, map[string]*string{"retention.ms": &abc}},
	}
	cases := []testCase{
		{"metadata and cluster", cluster},
		{"topic: create, list, describe, delete, create again", topicLife},
		{"configs of a topic and of the broker", configs},
		{"alter configs of a topic and of the broker", alterConfigs},
		{"validate only creates nothing", validateOnly},
		{"refused: topic exists, topic unknown", existsOrNot},
		{"no authorizer, quotas, credentials, transactions", unsecured},
		{"authorized operations are all", authorizedOperations},
		{"move a replica to its directory", replicaLogDirs},
	}
	for _, r := range refusals {
		cases = append(cases, testCase{"refused: " + r.name, func() {
			refused(r.code, create(r.topic, r.partitions, r.replicas, r.configs))
			nowhere(r.topic)
		}})
	}
	return append(cases, testCase{"all topics removed", removeTopics})
}

func listTopics() kadm.TopicDetails {
	topics, err := admin.ListTopics(within())
	check(err)
	return topics
}

func exists(topic string) bool { return listTopics().Has(topic) }

// nowhere checks with every broker that the topic is gone. It retries, because the client caches metadata for a moment.
func nowhere(topic string) {
	with, all := brokersWith(topic)
	want(with == 0, "it was created: %d brokers of %d know it", with, all)
}

func cluster() {
	metadata, err := admin.BrokerMetadata(within())
	check(err)
	described, err := kmsg.NewPtrDescribeClusterRequest().RequestWith(within(), client())
	check(err)
	check(kerr.ErrorForCode(described.ErrorCode))
	want(described.ClusterID != "" && described.ClusterID == metadata.Cluster, "cluster id %q, %q", described.ClusterID, metadata.Cluster)
	var ids []int32
	for _, broker := range described.Brokers {
		ids = append(ids, broker.NodeID)
	}
	want(reflect.DeepEqual(ids, metadata.Brokers.NodeIDs()), "brokers %v, %v", ids, metadata.Brokers)
}

func topicLife() {
	topic := newTopic("life", 3)
	until(func() bool { return exists(topic) })
	first := listTopics()[topic]
	check(first.Err)
	want(len(first.Partitions) == 3 && !first.IsInternal, "%v", first)
	for _, partition := range first.Partitions {
		want(partition.Leader >= 0 && len(partition.Replicas) == int(replicas) && len(partition.ISR) == int(replicas), "%v", partition)
	}
	roundTrip(topic)
	deleted, err := admin.DeleteTopics(within(), topic)
	check(err)
	check(deleted.Error())
	until(func() bool {
		with, _ := brokersWith(topic)
		return with == 0 && !exists(topic)
	})
	newTopic("life", 1)
	until(func() bool { return exists(topic) }) // the client caches metadata for a moment
	want(listTopics()[topic].ID != first.ID, "the topic id came back")
	roundTrip(topic)
}

func configs() {
	topic := newTopic("configs", 1, "retention.ms=12345000", "segment.bytes=20000000")
	find := func(found kadm.ResourceConfigs, err error, key string) (string, kmsg.ConfigSource) {
		check(err)
		check(found[0].Err)
		for _, config := range found[0].Configs {
			if config.Key == key {
				return config.MaybeValue(), config.Source
			}
		}
		panic(fmt.Errorf("%s is not among %d configs", key, len(found[0].Configs)))
	}
	for key, wanted := range map[string]struct {
		value  string
		source kmsg.ConfigSource
	}{
		"retention.ms":      {"12345000", kmsg.ConfigSourceDynamicTopicConfig},
		"segment.bytes":     {"20000000", kmsg.ConfigSourceDynamicTopicConfig},
		"max.message.bytes": {"1048588", kmsg.ConfigSourceDefaultConfig},
	} {
		found, err := admin.DescribeTopicConfigs(within(), topic)
		value, source := find(found, err, key)
		want(value == wanted.value && source == wanted.source, "%s is %s from %v", key, value, source)
	}
	metadata, err := admin.BrokerMetadata(within())
	check(err)
	found, err := admin.DescribeBrokerConfigs(within(), metadata.Brokers[0].NodeID)
	value, _ := find(found, err, "log.retention.hours")
	want(value == "168", "log.retention.hours is %s", value)
}

// altered returns the first error of the altered resources.
func altered(responses kadm.AlterConfigsResponses, err error) error {
	check(err)
	want(len(responses) > 0, "no answer")
	for _, response := range responses {
		if response.Err != nil {
			return response.Err
		}
	}
	return nil
}

func alterConfigs() {
	topic := newTopic("alter", 1, "retention.ms=12345000")
	metadata, err := admin.BrokerMetadata(within())
	check(err)
	nodes := metadata.Brokers.NodeIDs() // any of them returns a topic's configs
	value := func(key string) string {
		found, err := admin.DescribeTopicConfigs(within(), topic)
		check(err)
		for _, config := range found[0].Configs {
			if config.Key == key {
				return config.MaybeValue()
			}
		}
		return "absent"
	}
	set := func(key, value string) []kadm.AlterConfig {
		return []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}
	}
	unset := func(key string) []kadm.AlterConfig { return []kadm.AlterConfig{{Op: kadm.DeleteConfig, Name: key}} }
	check(altered(admin.AlterTopicConfigs(within(), append(set("segment.bytes", "20000000"), unset("retention.ms")...), topic)))
	until(func() bool { return value("segment.bytes") == "20000000" && value("retention.ms") == "604800000" })
	check(altered(admin.ValidateAlterTopicConfigs(within(), set("segment.bytes", "30000000"), topic)))
	until(func() bool { return value("segment.bytes") == "20000000" }) // a broker may be a moment behind
	refused(kerr.InvalidConfig, altered(admin.AlterTopicConfigs(within(), set("segment.bytes", "many"), topic)))
	refused(kerr.UnknownTopicOrPartition, altered(admin.AlterTopicConfigs(within(), set("segment.bytes", "20000000"), run+"-absent")))
	check(altered(admin.AlterBrokerConfigs(within(), set("log.roll.ms", "86400001")))) // of every broker
	until(func() bool { return value("segment.ms") == "86400001" })
	check(altered(admin.AlterBrokerConfigs(within(), set("log.roll.ms", "86400002"), nodes...)))
	until(func() bool { return value("segment.ms") == "86400002" })
	check(altered(admin.AlterBrokerConfigs(within(), unset("log.roll.ms"), nodes...)))
	check(altered(admin.AlterBrokerConfigs(within(), unset("log.roll.ms"))))
	until(func() bool { return value("segment.ms") == "604800000" })
}

func validateOnly() {
	topic := run + "-validate"
	validated, err := admin.ValidateCreateTopics(within(), 1, replicas, nil, topic)
	check(err)
	check(validated.Error())
	nowhere(topic)
}

func existsOrNot() {
	refused(kerr.TopicAlreadyExists, create(newTopic("twice", 1), 1, replicas, nil))
	deleted, err := admin.DeleteTopics(within(), run+"-absent")
	check(err)
	refused(kerr.UnknownTopicOrPartition, deleted.Error())
	described, err := admin.DescribeTopicConfigs(within(), run+"-absent")
	check(err)
	refused(kerr.UnknownTopicOrPartition, described[0].Err)
}

// unsecured checks how a broker responds that has no access control, quotas or credentials.
func unsecured() {
	every := func() *kadm.ACLBuilder {
		return kadm.NewACLs().AnyResource().Allow().AllowHosts().Deny().DenyHosts().Operations(kadm.OpAny).ResourcePatternType(kadm.ACLPatternAny)
	}
	described, err := admin.DescribeACLs(within(), every())
	check(err)
	want(len(described) > 0, "no answer")
	for _, one := range described {
		refused(kerr.SecurityDisabled, one.Err)
	}
	created, err := admin.CreateACLs(within(), kadm.NewACLs().Topics(run).Allow("User:somebody").AllowHosts().Operations(kadm.OpRead))
	check(err)
	want(len(created) == 1, "%d answers", len(created))
	refused(kerr.SecurityDisabled, created[0].Err)
	deleted, err := admin.DeleteACLs(within(), every())
	check(err)
	want(len(deleted) > 0, "no answer")
	for _, one := range deleted {
		refused(kerr.SecurityDisabled, one.Err)
	}
	quotas, err := admin.DescribeClientQuotas(within(), false, nil)
	check(err)
	scrams, err := admin.DescribeUserSCRAMs(within())
	check(err)
	transactions, err := admin.ListTransactionsByTxPattern(within(), nil, nil, run+"-absent.*")
	check(err)
	want(len(quotas)+len(scrams)+len(transactions) == 0, "%v %v %v", quotas, scrams, transactions)
	nobody, err := admin.DescribeUserSCRAMs(within(), "nobody")
	check(err)
	refused(kerr.ResourceNotFound, nobody["nobody"].Err)
}

func authorizedOperations() {
	topic := newTopic("authorized", 1)
	metadata, err := admin.Metadata(kadm.WithAuthorizedOps(within()), topic)
	check(err)
	request := kmsg.NewPtrDescribeClusterRequest()
	request.IncludeClusterAuthorizedOperations = true
	cluster, err := request.RequestWith(within(), client())
	check(err)
	told := kadm.DecodeACLOperations(cluster.ClusterAuthorizedOperations)
	ofCluster := []kadm.ACLOperation{kadm.OpCreate, kadm.OpAlter, kadm.OpDescribe, kadm.OpClusterAction, kadm.OpDescribeConfigs, kadm.OpAlterConfigs, kadm.OpIdempotentWrite}
	want(reflect.DeepEqual(told, ofCluster), "of the cluster %v", told)
	ofTopic := []kadm.ACLOperation{kadm.OpRead, kadm.OpWrite, kadm.OpCreate, kadm.OpDelete, kadm.OpAlter, kadm.OpDescribe, kadm.OpDescribeConfigs, kadm.OpAlterConfigs}
	want(reflect.DeepEqual(metadata.Topics[topic].AuthorizedOperations, ofTopic), "of a topic %v", metadata.Topics[topic].AuthorizedOperations)
}

func replicaLogDirs() {
	topic := newTopic("replica-log-dirs", 1)
	move := func(broker int32, directory string) error {
		partitions := kadm.TopicsSet{}
		partitions.Add(topic, 0)
		var request kadm.AlterReplicaLogDirsReq
		request.Add(directory, partitions)
		moved, err := admin.AlterBrokerReplicaLogDirs(within(), broker, request)
		check(err)
		want(len(moved.Sorted()) == 1, "%v", moved)
		return moved.Sorted()[0].Err
	}
	var with []kadm.DescribedLogDir // the log directories that have the replicas
	until(func() bool {
		described, err := admin.DescribeAllLogDirs(within(), nil)
		check(err)
		with = nil
		for _, one := range described.Sorted() {
			if _, here := one.Topics.Lookup(topic, 0); here {
				with = append(with, one)
			}
		}
		return len(with) == int(replicas)
	})
	for _, one := range with {
		check(move(one.Broker, one.Dir))
	}
	refused(kerr.LogDirNotFound, move(with[0].Broker, "/nowhere"))
}

func removeTopics() {
	var mine []string
	for _, topic := range listTopics().Names() {
		if strings.HasPrefix(topic, run) {
			mine = append(mine, topic)
		}
	}
	deleted, err := admin.DeleteTopics(within(), mine...)
	check(err)
	check(deleted.Error())
}
