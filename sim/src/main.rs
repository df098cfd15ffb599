//! `fullbore-sim [--world cluster|transactions] [--schedules N] [--seed SEED] [--fault NAME]`: runs schedules on all
//! processors, and prints the seeds that failed. A single schedule prints its outcome.

use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Instant;

use fullbore_schedules::run_seeds;
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

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let seeds = options.seed..options.seed.saturating_add(options.schedules);
    let threads = std::thread::available_parallelism().map_or(1, Into::into);
    let run = |seed| (options.run)(seed).inspect_err(|error| println!("--seed {seed}: {error}"));
    let results = run_seeds(seeds, threads, run);
    let outcomes: Vec<&Outcome> = results.iter().filter_map(|(_, result)| result.as_ref().ok()).collect();
    let wrong = results.len() - outcomes.len();
    let sum = |at: usize| outcomes.iter().map(|outcome| outcome[at].1).sum::<u64>();
    let names = outcomes.first().into_iter().flat_map(|outcome| outcome.iter().enumerate());
    let counts = names.map(|(at, (name, _))| format!("{} {name}", sum(at))).collect::<Vec<_>>().join(", ");
    println!("{wrong} of {} schedules went wrong; {counts}, {:.1} s", options.schedules, began.elapsed().as_secs_f64());
    ExitCode::from(u8::from(wrong > 0))
}
