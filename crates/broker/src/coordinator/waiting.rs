//! Requests that wait for an answer from a coordinator. Each has a ticket, which is removed once the answer was sent.

use fullbore_wire::ErrorCode;
use std::collections::HashMap;
use tokio::sync::oneshot;

/// The waiting requests about one key.
pub struct Waiting<A> {
    answers: HashMap<u64, oneshot::Sender<A>>,
    tickets: u64,
}

/// The future answer to a request.
pub struct PendingAnswer<A>(oneshot::Receiver<A>);

impl<A> Default for Waiting<A> {
    fn default() -> Self {
        Waiting { answers: HashMap::new(), tickets: 0 }
    }
}

impl<A> Waiting<A> {
    /// Creates a ticket. Returns its number and the pending answer.
    pub fn ticket(&mut self) -> (u64, PendingAnswer<A>) {
        let ticket = self.tickets;
        self.tickets += 1;
        let (answer, pending) = oneshot::channel();
        self.answers.insert(ticket, answer);
        (ticket, PendingAnswer(pending))
    }

    /// Sends an answer to the request with this ticket. If its client has disconnected, the answer is dropped.
    pub fn answer(&mut self, ticket: u64, answer: A) {
        if let Some(waiting) = self.answers.remove(&ticket) {
            let _ = waiting.send(answer);
        }
        if self.answers.is_empty() {
            self.answers.shrink_to_fit();
        }
    }

    /// Sends an answer to every request that waits.
    pub fn answer_all(&mut self, answer: impl Fn() -> A) {
        for (_, waiting) in std::mem::take(&mut self.answers) {
            let _ = waiting.send(answer());
        }
    }

    /// Returns true if no request is waiting.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }
}

impl<A> PendingAnswer<A> {
    /// Returns true if the answer has arrived.
    pub fn is_answered(&self) -> bool {
        !self.0.is_empty()
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// Fails with COORDINATOR_NOT_AVAILABLE if the broker stops first.
    pub async fn answer(self) -> Result<A, ErrorCode> {
        self.0.await.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)
    }
}
