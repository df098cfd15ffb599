//! A broker whose disk hangs, so that writes to it do not come back: its partitions go on at other brokers.

use crate::faults::{ALL, PARTITIONS, SOON, TOPIC, befalls};
use crate::full_disk::{NEVER, acknowledged, on_a_small_disk};
use crate::records::logs_are_equal;
use fullbore_tests::{Batch, Client, Cluster, wait_until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Waits until broker 1 leads nothing, and no leader waits for it.
fn wait_until_it_is_out(cluster: &Cluster) {
    wait_until("others lead, and wait for two replicas", SOON, || {
        let partitions = cluster.partitions(2, TOPIC);
        partitions.iter().all(|of| of.leader_id > 1 && !of.isr_nodes.contains(&1))
    });
}

#[test]
fn disk_hangs_its_broker_hands_over_and_nobody_waits_for_it() {
    let Some((disk, _others, cluster)) = on_a_small_disk(NEVER) else { return };
    befalls(cluster, |cluster, load| {
        let frozen = disk.freeze();
        wait_until_it_is_out(cluster);
        load.goes_on();
        cluster.broker(1).wait_for_stderr("the disk hangs: other brokers lead");
        drop(frozen);
    });
}

#[test]
fn write_hangs_until_another_leads_it_is_not_acknowledged_and_cut_off() {
    let Some((disk, _others, mut cluster)) = on_a_small_disk(NEVER) else { return };
    let partitions = cluster.partitions(2, TOPIC);
    for of in &partitions {
        cluster.broker(of.leader_id).client().produced(TOPIC, of.partition_index, &Batch::of(&["before"]));
    }
    let partition = partitions.iter().find(|of| of.leader_id == 1).expect("each broker leads").partition_index;
    // More than the broker has threads that serve clients.
    let mut clients: Vec<Client> = (0..8).map(|_| cluster.broker(1).client()).collect();
    let frozen = disk.freeze();
    for client in &mut clients {
        client.send_produce(TOPIC, partition, &Batch::of(&["hangs"]));
    }
    for client in &mut clients {
        let answer = client.try_receive_produced();
        assert!(answer.is_none_or(|answer| answer.error_code.is_err()), "it is hung up on, or refused");
    }
    wait_until_it_is_out(&cluster);
    let successor = cluster.wait_for_leader(2, TOPIC, partition, 1);
    let mut client = cluster.broker(successor).client();
    assert_eq!(client.produced(TOPIC, partition, &Batch::of(&["after"])), 1);
    drop(frozen);
    cluster.wait_for_isr(successor, TOPIC, 3);
    let records: Vec<String> = client.fetch_records(TOPIC, partition).iter().map(|record| record.text()).collect();
    assert_eq!(records, ["before", "after"]);
    logs_are_equal(&mut cluster, TOPIC, PARTITIONS, &ALL);
}

/// Time for which the disk hangs.
const HANGS_FOR: Duration = Duration::from_secs(40);

#[test]
#[ignore = "prints the table of docs/benchmarks.md"]
fn what_a_hung_disk_costs() {
    let Some((disk, _others, cluster)) = on_a_small_disk("30000") else { return };
    let addresses = [1, 2, 3].map(|id| cluster.address(id));
    let led = cluster.partitions(2, TOPIC);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let lanes: Vec<_> = led
            .iter()
            .map(|of| {
                let is_over = &is_over;
                scope.spawn(move || acknowledged(&addresses, of.partition_index, is_over))
            })
            .collect();
        std::thread::sleep(Duration::from_secs(5));
        let (frozen, hung) = (disk.freeze(), Instant::now());
        std::thread::sleep(HANGS_FOR);
        let answers = Instant::now();
        drop(frozen);
        std::thread::sleep(Duration::from_secs(15));
        is_over.store(true, Ordering::Relaxed);
        for (of, lane) in led.iter().zip(lanes) {
            let times = lane.join().expect("it answers or closes");
            let pairs = times.iter().zip(times.iter().skip(1));
            let pause = |from: Instant, to: Option<Instant>| {
                let within = pairs.clone().filter(|(before, next)| **next > from && to.is_none_or(|to| **before < to));
                within.map(|(before, next)| *next - (*before).max(from)).max()
            };
            println!(
                "led by {}: longest pause once the disk hangs {:?}, once it answers {:?}",
                of.leader_id,
                pause(hung, Some(answers)),
                pause(answers, None)
            );
        }
    });
}
