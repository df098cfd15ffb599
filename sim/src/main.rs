//! `fullbore-sim [--schedules N] [--seed SEED] [--fault NAME]`: runs schedules on all processors, and names the seeds at which something was
//! wrong. One schedule alone tells what it came to.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use fullbore_sim::{Fault, Report, fault::FAULTS, run};

struct Options {
    schedules: u64,
    seed: u64,
    fault: Option<Fault>,
}

/// What all schedules came to.
#[derive(Default)]
struct Sum {
    wrong: u64,
    events: u64,
    acknowledged: u64,
    elections: u64,
}

fn options() -> Result<Options, String> {
    let mut options = Options { schedules: 1, seed: 0, fault: None };
    let mut typed = std::env::args().skip(1);
    while let Some(name) = typed.next() {
        let value = typed.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"));
        match name.as_str() {
            "--schedules" => options.schedules = number()?,
            "--seed" => options.seed = number()?,
            "--fault" => {
                let named = FAULTS.into_iter().find(|fault| format!("{fault:?}") == value);
                options.fault = Some(named.ok_or_else(|| format!("no fault is called {value}; there are {FAULTS:?}"))?);
            }
            _ => return Err(format!("{name} is unknown: --schedules, --seed, --fault")),
        }
    }
    Ok(options)
}

impl Sum {
    fn add(&mut self, seed: u64, outcome: Result<Report, String>) {
        match outcome {
            Ok(report) => {
                self.events += report.events;
                self.acknowledged += report.acknowledged;
                self.elections += u64::try_from(report.leader_epochs).unwrap_or(0);
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
            let outcome = run(seed, options.fault);
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
    let Sum { wrong, events, acknowledged, elections } = run_all(&options);
    println!(
        "{wrong} of {} schedules went wrong; {events} events, {acknowledged} acknowledged records, {elections} elections, {:.1} s",
        options.schedules,
        began.elapsed().as_secs_f64()
    );
    ExitCode::from(u8::from(wrong > 0))
}
