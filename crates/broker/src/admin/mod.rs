//! The admin port.
use crate::broker::{Shared, StartError};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Starts the admin listener unless it is off.
pub async fn start(_broker: &Arc<Shared>) -> Result<Option<(SocketAddr, JoinHandle<()>)>, StartError> {
    Ok(None)
}
