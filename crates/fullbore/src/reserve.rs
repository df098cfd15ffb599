//! Reserve threads of the runtime, which are used once the threads that serve clients hang in writes to the disk.
//!
//! A blocked worker of the runtime cannot be replaced, and a write blocks. The reserve is workers that wait outside the
//! runtime's work: they take no part in it and cost nothing. Invariant: once released, they stay.

use std::sync::mpsc::{Sender, channel};
use tokio::runtime::Runtime;

/// Number of reserve threads. One serves; with two, one may run longer work.
pub const THREADS: usize = 2;

/// Reserve of held workers.
pub struct Reserve {
    held: Vec<Sender<()>>,
}

impl Reserve {
    /// Holds back [`THREADS`] workers of a runtime, which has this many more than are to serve.
    pub fn hold(runtime: &Runtime) -> Reserve {
        let held = (0..THREADS).map(|_| {
            let (held, let_go) = channel();
            runtime.spawn(async move {
                let _ = let_go.recv();
            });
            held
        });
        Reserve { held: held.collect() }
    }

    /// Returns true until [`Reserve::let_go`].
    pub fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Releases the workers, which then serve.
    pub fn let_go(&mut self) {
        self.held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_reserve_runs_tasks_while_all_other_workers_hang() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(1 + THREADS).enable_all().build().expect("a runtime");
        let mut reserve = Reserve::hold(&runtime);
        let (hold, held) = channel::<()>();
        let (hangs, is_hanging) = channel();
        runtime.spawn(async move {
            let _ = hangs.send(());
            let _ = held.recv();
        });
        is_hanging.recv().expect("the only worker that is not held back has it");
        let waits = runtime.spawn(async { tokio::time::sleep(std::time::Duration::from_millis(1)).await });
        assert!(reserve.is_held());
        reserve.let_go();
        runtime.block_on(waits).expect("it is served");
        drop(hold);
    }
}
