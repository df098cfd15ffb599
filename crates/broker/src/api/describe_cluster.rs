//! DescribeCluster 0-2: lists the brokers of the cluster.

use super::call::{Call, Fault, Reply};
use super::{nodes, operations};
use crate::node::MetadataServices;
use fullbore_control::{Endpoint, RegisteredBroker};
use fullbore_wire::apis::describe_cluster::{DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse};
use fullbore_wire::{ErrorCode, Frame, Text};

/// Endpoint types of the request (KIP-919).
const BROKERS: i8 = 1;
const CONTROLLERS: i8 = 2;

pub fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeClusterRequest = call.body(reply.version)?;
    let mut response = DescribeClusterResponse { cluster_id: metadata.cluster_id.clone(), ..Default::default() };
    match request.endpoint_type {
        BROKERS => {
            let image = metadata.control.image();
            response.controller_id = metadata.config.node.id;
            let is_requested = request.include_cluster_authorized_operations;
            response.cluster_authorized_operations =
                operations::where_requested(is_requested, operations::OF_THE_CLUSTER);
            let registered =
                nodes::registered(metadata, &image, call.listener).map(|(id, node, at)| described(id, node, at));
            response.brokers =
                registered.filter(|broker| request.include_fenced_brokers || !broker.is_fenced).collect();
        }
        CONTROLLERS => {
            response.error_code = ErrorCode::MISMATCHED_ENDPOINT_TYPE;
            response.error_message = Some(Text::from_static("This is a broker; there are no controllers to describe."));
        }
        other => {
            response.error_code = ErrorCode::UNSUPPORTED_ENDPOINT_TYPE;
            response.error_message = Some(Text::from(format!("Unsupported endpoint type {other}")));
        }
    }
    reply.frame::<DescribeClusterRequest>(&response)
}

fn described(broker_id: i32, node: &RegisteredBroker, at: &Endpoint) -> DescribeClusterBroker {
    DescribeClusterBroker {
        broker_id,
        host: at.host.clone(),
        port: i32::from(at.port),
        rack: node.rack.clone(),
        is_fenced: node.registration.is_fenced,
        ..Default::default()
    }
}
