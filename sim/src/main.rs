//! `fullbore-sim [--world cluster|transactions] [--schedules N] [--seed SEED] [--fault NAME]`: runs schedules on all
//! processors, and prints the seeds that failed. A single schedule prints its outcome.

use std::fmt::Debug;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use fullbore_sim::{fault, transactions};

/// A function that runs the schedule of a seed and returns its outcome.
type Run = Box<dyn Fn(u64) -> Result<Outcome, String> + Sync>;

struct Options {
    schedules: u64,
    seed: u64,
    run: Run,
}

/// The outcome of one schedule, as three numbers with their names.
type Outcome = [(&'static str, u64); 3];

/// Outcomes of all schedules, added up.
#[derive(Default)]
struct Sum {
    wrong: u64,
    outcome: Option<Outcome>,
}

fn options() -> Result<Options, String> {
    let (mut schedules, mut seed, mut world, mut fault) = (1, 0, "cluster".to_owned(), None);
    let mut typed = std::env::args().skip(1);
    while let Some(name) = typed.next() {
        let value = typed.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"));
        match name.as_str() {
            "--schedules" => schedules = number()?,
            "--seed" => seed = number()?,
            "--world" => world = value,
            "--fault" => fault = Some(value),
            _ => return Err(format!("{name} is unknown: --world, --schedules, --seed, --fault")),
        }
    }
    let run = match world.as_str() {
        "cluster" => cluster(named(&fault::FAULTS, fault)?),
        "transactions" => transactions(named(&transactions::fault::FAULTS, fault)?),
        _ => return Err(format!("no world is called {world}: cluster, transactions")),
    };
    Ok(Options { schedules, seed, run })
}

fn named<F: Copy + Debug>(faults: &[F], name: Option<String>) -> Result<Option<F>, String> {
    let Some(name) = name else { return Ok(None) };
    let found = faults.iter().copied().find(|fault| format!("{fault:?}") == name);
    found.map(Some).ok_or_else(|| format!("no fault is called {name}; there are {faults:?}"))
}

fn cluster(fault: Option<fullbore_sim::Fault>) -> Run {
    Box::new(move |seed| {
        let report = fullbore_sim::run(seed, fault)?;
        let elections = u64::try_from(report.leader_epochs).unwrap_or(0);
        Ok([("events", report.events), ("acknowledged records", report.acknowledged), ("elections", elections)])
    })
}

fn transactions(fault: Option<transactions::Fault>) -> Run {
    Box::new(move |seed| {
        let report = transactions::run(seed, fault)?;
        let [committed, aborted] = [report.committed, report.aborted].map(|count| count as u64);
        Ok([("committed transactions", committed), ("aborted", aborted), ("elections", report.elections)])
    })
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: Result<Outcome, String>) {
        match outcome {
            Ok(outcome) => {
                let sum = self.outcome.get_or_insert_with(|| outcome.map(|(name, _)| (name, 0)));
                sum.iter_mut().zip(outcome).for_each(|((_, sum), (_, count))| *sum += count);
            }
            Err(error) => {
                self.wrong += 1;
                println!("--seed {seed}: {error}");
            }
        }
    }
}

fn run_all(options: &Options) -> Sum {
    let next = AtomicU64::new(options.seed);
    let end = options.seed.saturating_add(options.schedules);
    let sum = Mutex::new(Sum::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= end {
                break;
            }
            let outcome = (options.run)(seed);
            sum.lock().expect("nobody panics with it").add(seed, outcome);
        }
    };
    std::thread::scope(|scope| {
        (0..std::thread::available_parallelism().map_or(1, Into::into)).for_each(|_| drop(scope.spawn(work)));
    });
    sum.into_inner().expect("nobody panics with it")
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let Sum { wrong, outcome } = run_all(&options);
    let counts = outcome.into_iter().flatten().map(|(name, count)| format!("{count} {name}"));
    let counts = counts.collect::<Vec<_>>().join(", ");
    println!("{wrong} of {} schedules went wrong; {counts}, {:.1} s", options.schedules, began.elapsed().as_secs_f64());
    ExitCode::from(u8::from(wrong > 0))
}
