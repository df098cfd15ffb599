#!/bin/bash
set -u
F=/tmp/fresh/target/release/fullbore; P=/work/shared/peers/kafka; D=/tmp/mc; mkdir -p $D
$F cluster down --data-dir $D/f >/dev/null 2>&1; rm -rf $D/f
$F cluster up --brokers 3 --data-dir $D/f --port 29092 | tail -3
KAFKA_HEAP="-Xmx1G -Xms1G" $P/kafka-up.sh 3
FB=127.0.0.1:29092,127.0.0.1:29093,127.0.0.1:29094
FP=$(cat $D/f/broker-*.pid | awk '{print $1}' | tr '\n' ' ')
run() { # who label args
  if [ $1 = ours ]; then BOOTSTRAP=$FB PIDS="$FP" $P/perf.sh "${@:2}"; else $P/perf.sh "${@:2}"; fi; }
$P/perf.sh header
for who in ours kafka; do for rf in 1 3; do run $who topic rf_$rf 1 $rf; done; done
for round in 1 2 3; do for who in ours kafka; do for rf in 1 3; do
  run $who produce $who-003-rf$rf rf_$rf 25000 1024 -1 acks=all; done; done; done
for round in 1 2; do for who in ours kafka; do for rf in 1 3; do
  WARMUP=100000 run $who produce $who-1M-rf$rf rf_$rf 1000000 1024 -1 acks=all; done; done; done
for round in 1 2; do for rf in 1 3; do
  echo "own rf$rf: $($F perf produce --topic rf_$rf --num-records 2000000 --record-size 1024 --throughput -1 --bootstrap-server $FB 2>&1 | tail -1)"; done; done
