//! Starts the control plane: opens the store, reads the metadata, and registers the broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fullbore_rules::cluster::{Joining, PreviousShutdown};
use fullbore_wire::{ErrorCode, Text, Uuid};
use tokio::sync::watch;

use super::command::{ChangeCommand, RegisterBroker};
use super::error::OpenError;
use super::identity::{Identity, UsedDirectory};
use super::image::Image;
use super::node::Endpoint;
use super::store::Store;
use super::takeover::{self, Takeover};
use super::writer::{Failure, MetadataWriter};
use fullbore_config::BrokerConfig;
use fullbore_db::StoreError;
use fullbore_db::postgres::known_changes::KnownChanges;
use fullbore_host::random_id;
use fullbore_host::start_retries::StartRetries;

/// Facts about the starting broker that its registration needs.
#[derive(Debug, Clone)]
pub struct RegistrationInfo {
    /// The addresses that clients use, by listener name.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// How the previous process ended.
    pub ended: PreviousShutdown,
    /// True if the machine has certainly not booted since the data directory was last used.
    pub is_same_boot: bool,
    /// The time for retries while the cluster's database cannot be used.
    pub retries: StartRetries,
    /// The changes to diskless topics that this process knows. The control plane uses no database that lacks any of
    /// them.
    pub changes: Arc<KnownChanges>,
}

/// The results of a registration.
pub struct Started {
    pub identity: Identity,
    pub process: Uuid,
    pub images: watch::Receiver<Arc<Image>>,
}

/// Opens the store, reads the metadata, and registers the broker. Each call to the database is retried while it cannot
/// be used; `open` must do so itself.
pub fn started<S: Store>(
    broker: Arc<BrokerConfig>,
    arrival: RegistrationInfo,
    open: impl FnOnce() -> Result<(S, Identity), OpenError>,
) -> Result<(MetadataWriter<S>, Started), OpenError> {
    let rack = broker.node.rack.as_deref().map(Text::from);
    let retries = arrival.retries;
    let (store, identity) = open()?;
    let [directory, process] = [identity.directory, random_id()].map(|id| u128::from_be_bytes(id.0));
    let marks = identity.used.as_ref().map(|used| used.marks(arrival.is_same_boot)).unwrap_or_default();
    let mut joining = Joining { directory, process, ended: arrival.ended, marks, reported: 0 };
    let endpoints = arrival.endpoints;
    let (id, session_timeout_ms) = (broker.node.id, broker.membership.session_timeout_ms);
    let serves_diskless = broker.diskless.is_served;
    let accepts_lost_directory = broker.membership.accepts_lost_directory;
    let refused = |failure: Failure| {
        let store = identity.store.clone();
        match failure {
            Failure::Inapplicable(source) => OpenError::Inapplicable { store, source: Box::new(source) },
            Failure::Store(error) => OpenError::of_store(store, error),
            Failure::Unknown(reason) => OpenError::of_store(store, StoreError::Away(reason.into())),
        }
    };
    let (mut owner, images) =
        MetadataWriter::new(store, broker, Box::new(random_id)).map_err(|source| refused(source.into()))?;
    let session = Duration::from_millis(session_timeout_ms);
    // Read the whole state before taking the lock, so that other brokers do not have to wait for it.
    retries.run(OpenError::is_transient, || owner.read().map_err(refused))?;
    if let Some(used) = &identity.used {
        let image = Arc::clone(&images.borrow());
        let registered = image.node(id).filter(|node| node.directory == identity.directory).map(|node| node.process);
        if let Some(process) = registered {
            let mut reported = || owner.store.noted_by(id, process).map_err(|error| refused(error.into()));
            joining.reported = retries.run(OpenError::is_transient, &mut reported)?;
        }
        let former = registered.filter(|process| !is_older_copy(used, &joining, *process));
        let unusable = |source| OpenError::DirectoryIdentity { file: used.file(), source };
        used.join(former, Uuid(process.to_be_bytes())).map_err(unusable)?;
    }
    let command = RegisterBroker { id, joining, rack, serves_diskless, accepts_lost_directory, endpoints };
    register(&mut owner, &images, command, session, &retries, refused)?;
    owner.stock_up();
    Ok((owner, Started { identity, images, process: Uuid(process.to_be_bytes()) }))
}

/// Registers the broker, in one transaction or more. If a silent process has its id, fences that process first.
fn register<S: Store>(
    owner: &mut MetadataWriter<S>,
    images: &watch::Receiver<Arc<Image>>,
    command: RegisterBroker,
    session: Duration,
    retries: &StartRetries,
    refused: impl Fn(Failure) -> OpenError,
) -> Result<(), OpenError> {
    let id = command.id;
    let command = ChangeCommand::RegisterBroker(command);
    loop {
        if retries.is_stopped_within(Duration::ZERO) {
            return Err(OpenError::Stopped(id));
        }
        // If the outcome of a commit is unknown, the next attempt finds this process registered, or registers it.
        let attempt = || owner.transact(|draft| draft.change(&command)).map_err(&refused);
        let refusal = match retries.run(OpenError::is_transient, attempt)? {
            Some(Err(refusal)) => refusal,
            // The broker's former process still leads partitions that this command must hand over to other brokers. Its
            // next piece is a new transaction, so other brokers can lock the store in between.
            None => continue,
            Some(Ok(())) => return Ok(()),
        };
        let image = Arc::clone(&images.borrow());
        let fence = || takeover::fence_if_silent(owner, &image, id, session, retries).map_err(&refused);
        let takeover = match refusal.code == ErrorCode::DUPLICATE_BROKER_REGISTRATION {
            true => retries.run(OpenError::is_transient, fence)?,
            false => Takeover::Refused,
        };
        match takeover {
            Takeover::Fenced => {}
            Takeover::Refused => return Err(OpenError::NotRegistered(refusal.message.into_owned())),
            Takeover::Stopped => return Err(OpenError::Stopped(id)),
        }
    }
}

/// Returns true and logs a warning if the directory is an older copy, because the registered process has used a newer
/// state of this directory.
fn is_older_copy(used: &UsedDirectory, joining: &Joining, registered: Uuid) -> bool {
    let is_older = joining.marks.is_older_than(u128::from_be_bytes(registered.0), joining.reported);
    if is_older {
        tracing::warn!(
            file = %used.file().display(),
            "this data directory is an older copy: its broker has since used a newer state; this broker leads nothing \
             until it has replicated the missing records from other replicas"
        );
    }
    is_older
}
