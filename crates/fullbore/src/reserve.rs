//! Reserve threads of the runtime. They serve clients if all other threads hang in writes to the disk.
//!
//! A write blocks its worker thread, and the runtime cannot replace a blocked worker. The reserve consists of workers
//! that are blocked on purpose. Until they are released, they run no tasks and use no processor time. Invariant: a
//! released worker is never blocked again.

use std::sync::mpsc::{Sender, channel};
use tokio::runtime::Runtime;

/// The number of reserve threads. One thread would be enough to serve clients. The second serves them while the first
/// is busy with long work.
pub const THREADS: usize = 2;

/// The workers that are held in reserve.
pub struct Reserve {
    held: Vec<Sender<()>>,
}

impl Reserve {
    /// Blocks [`THREADS`] workers of a runtime, to hold them in reserve. The caller must have created the runtime with
    /// this number of additional workers.
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

    /// Returns true until [`Reserve::let_go`] is called.
    pub fn is_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Releases the workers, so that they serve clients.
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
