//! Has others lead what this broker leads and cannot write any more, since a write or an fsync has failed, or the log is damaged.
//!
//! Not who leads then, which is the control plane's decision. Where nobody else may lead, everything stays as it is.

use super::context::Context;
use crate::partitions::Replica;
use fullbore_host::seldom::Seldom;
use fullbore_wire::Uuid;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Partitions of one command.
const ASKED_MAX: usize = 10_000;

/// Until the broker stops.
pub(super) async fn run(context: Arc<Context>) {
    let (refused, unwritten) = (Seldom::default(), Seldom::default());
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = context.stopping() => return,
        }
        let (failed, refused_logs) = (context.partitions.failed_partitions(), context.partitions.refused_partitions());
        if failed + refused_logs == 0 {
            continue;
        }
        let looked = Arc::clone(&context);
        let look = move || {
            let lost = if failed > 0 { looked.partitions.lose_ends() } else { Ok(()) };
            (of_no_use(&looked), lost)
        };
        let (wanted, lost) = tokio::task::spawn_blocking(look).await.unwrap_or_else(|_| (HashSet::new(), Ok(())));
        if let Err(error) = lost
            && let Some(left_out) = unwritten.due()
        {
            tracing::error!(%error, left_out, "not written that ends of logs may be lost");
        }
        if wanted.is_empty() {
            continue;
        }
        if let Err(refusal) = context.control.resign(wanted).await
            && let Some(left_out) = refused.due()
        {
            tracing::warn!(%refusal, left_out, "this broker goes on leading what it cannot write");
        }
    }
}

/// Partitions that this broker leads and cannot write, and that others in sync may lead.
fn of_no_use(context: &Context) -> HashSet<(Uuid, i32)> {
    let own = context.config.node_id;
    let may_be_led = |replica: &Arc<Replica>| {
        let registered = replica.registered();
        registered.leader == Some(own) && registered.isr.iter().chain(&registered.elr).any(|id| *id != own)
    };
    let led = context.partitions.partitions().into_iter().filter(may_be_led);
    let broken = led.filter(|replica| replica.is_broken());
    broken.map(|replica| (replica.topic_id(), replica.index())).take(ASKED_MAX).collect()
}
