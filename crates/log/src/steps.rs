//! Marks the steps between changes of files. At each step, a test can examine the state that a crash would leave.
//! Outside of tests the steps do nothing.

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

    /// Runs `done`, and calls `look` at each step in this thread.
    pub fn watch<T>(look: impl FnMut() + 'static, done: impl FnOnce() -> T) -> T {
        LOOK.set(Some(Box::new(look)));
        let result = done();
        LOOK.take();
        result
    }
}
