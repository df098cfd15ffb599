//! Moments between two changes of a folder's files, at which a test looks what a crash would leave. Nothing otherwise.

#[cfg(not(any(test, feature = "test-util")))]
#[inline]
pub fn step() {}

#[cfg(any(test, feature = "test-util"))]
pub use watched::{step, watch};

#[cfg(any(test, feature = "test-util"))]
mod watched {
    use std::cell::RefCell;

    type AtStep = Box<dyn FnMut()>;

    thread_local! {
        static LOOK: RefCell<Option<AtStep>> = const { RefCell::new(None) };
    }

    pub fn step() {
        LOOK.with_borrow_mut(|look| look.iter_mut().for_each(|look| look()));
    }

    /// Runs `done` while `look` is called at each step of this thread.
    pub fn watch<T>(look: impl FnMut() + 'static, done: impl FnOnce() -> T) -> T {
        LOOK.set(Some(Box::new(look)));
        let result = done();
        LOOK.take();
        result
    }
}
