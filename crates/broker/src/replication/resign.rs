//! Withdraws this broker from the ISR of partitions that it cannot write or read. This happens after a failed write or
//! fsync, and if a log is damaged. It also happens if no file can be created in the log's directory, or if committed
//! records are missing or cannot be read. Afterwards leaders no longer wait for this broker, and another replica leads
//! the partitions that this broker led.
//!
//! The control plane chooses the new leader. If no other replica can lead, this broker stays the leader, unless its log
//! lacks committed records.

use super::context::Context;
use crate::partitions::Replica;
use fullbore_control::Resigned;
use fullbore_host::log_rate_limit::LogRateLimit;
use fullbore_rules::cluster::ResignedLog;
use std::sync::Arc;
use std::time::Duration;

/// How often the partitions are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of partitions in one command.
const ASKED_MAX: usize = 10_000;

/// Withdraws from unusable partitions once a second, until the broker stops.
pub(super) async fn run(context: Arc<Context>) {
    let (refused, unwritten) = (LogRateLimit::default(), LogRateLimit::default());
    loop {
        tokio::select! {
            () = tokio::time::sleep(CHECK_INTERVAL) => {}
            () = context.stopping() => return,
        }
        let (failed, refused_logs) = (context.partitions.failed_partitions(), context.partitions.refused_partitions());
        if failed + refused_logs + context.partitions.unwritable_partitions() == 0 {
            continue;
        }
        let looked = Arc::clone(&context);
        let check = move || {
            let lost = if failed > 0 { looked.partitions.mark_unclean() } else { Ok(()) };
            (of_no_use(&looked), lost)
        };
        let (wanted, lost) = tokio::task::spawn_blocking(check).await.unwrap_or_else(|_| (Resigned::new(), Ok(())));
        if let Err(error) = lost
            && let Some(left_out) = unwritten.due()
        {
            tracing::error!(%error, left_out, "cannot record that logs may be truncated: a restart may trust records that the disk has lost; check the disk");
        }
        if wanted.is_empty() {
            continue;
        }
        if let Err(refusal) = context.control.resign(wanted).await
            && let Some(left_out) = refused.due()
        {
            tracing::warn!(%refusal, left_out, "cannot withdraw from partitions that this broker cannot write or read: it stays their leader or in their ISR or ELR, and retries in a second");
        }
    }
}

/// Returns the partitions that this broker cannot write or read and must withdraw from. A leader withdraws only if the
/// ISR has another member. A follower withdraws only if it is in the ISR. If the log may lack records at its end,
/// members of the ELR count like members of the ISR. Partitions without a leader are skipped.
fn of_no_use(context: &Context) -> Resigned {
    let own = context.config.node.id;
    let resigned = |replica: Arc<Replica>| {
        let registered = replica.registered();
        let (isr, elr) = (&registered.isr, &registered.elr);
        let leads = registered.leader? == own;
        // Lock the partition only if this broker is in its ISR or ELR.
        let log = if isr.contains(&own) || elr.contains(&own) { replica.resigned_log()? } else { return None };
        let mut counted = isr.iter().chain(if log == ResignedLog::Whole { [].iter() } else { elr.iter() });
        let is_needless = if leads { counted.any(|id| *id != own) } else { counted.any(|id| *id == own) };
        is_needless.then(|| ((replica.topic_id(), replica.index()), log))
    };
    context.partitions.partitions().into_iter().filter_map(resigned).take(ASKED_MAX).collect()
}
