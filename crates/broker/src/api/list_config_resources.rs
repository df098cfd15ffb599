//! ListConfigResources 0-1: lists the resources that have a configuration. Version 0 returns only client metrics
//! (KIP-714). Version 1 returns the requested types, or all (KIP-1142).

use super::call::{Call, Fault, Reply};
use super::describe_configs::{BROKER, BROKER_LOGGER, TOPIC};
use super::nodes;
use crate::node::MetadataServices;
use fullbore_config::Resource;
use fullbore_wire::apis::list_config_resources::{
    ConfigResource, ListConfigResourcesRequest, ListConfigResourcesResponse,
};
use fullbore_wire::{ErrorCode, Frame, Text};

const CLIENT_METRICS: i8 = Resource::ClientMetrics as i8;
const GROUP: i8 = Resource::Group as i8;
const ALL: [i8; 5] = [TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP];

pub fn handle(call: &mut Call<'_>, metadata: &MetadataServices, reply: Reply) -> Result<Frame, Fault> {
    let request: ListConfigResourcesRequest = call.body(reply.version)?;
    let mut response = ListConfigResourcesResponse::default();
    if request.resource_types.iter().any(|requested| !ALL.contains(requested)) {
        response.error_code = ErrorCode::UNSUPPORTED_VERSION;
        return reply.frame::<ListConfigResourcesRequest>(&response);
    }
    let wanted = match (reply.version.number, &request.resource_types[..]) {
        (0, _) => vec![CLIENT_METRICS],
        (_, []) => ALL.to_vec(),
        (_, requested) => ALL.into_iter().filter(|known| requested.contains(known)).collect(),
    };
    for resource_type in wanted {
        let resource = |resource_name| ConfigResource { resource_name, resource_type, ..Default::default() };
        let names = names(metadata, call.listener, resource_type);
        response.config_resources.extend(names.into_iter().map(resource));
    }
    reply.frame::<ListConfigResourcesRequest>(&response)
}

fn names(metadata: &MetadataServices, listener: usize, resource_type: i8) -> Vec<Text> {
    let image = metadata.control.image();
    match resource_type {
        TOPIC => image.topics().map(|topic| Text::from(topic.name.as_str())).collect(),
        BROKER | BROKER_LOGGER => {
            nodes::reached(metadata, &image, listener).map(|(id, ..)| Text::from(id.to_string())).collect()
        }
        CLIENT_METRICS => image.resource_names(Resource::ClientMetrics).map(Text::from).collect(),
        GROUP => image.resource_names(Resource::Group).map(Text::from).collect(),
        _ => Vec::new(),
    }
}
