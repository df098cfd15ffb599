//! AlterConfigs 0-2, deprecated since Kafka 2.3: replaces all settings of a resource.

use super::alteration::{Alteration, alter, check_names, invalid};
use super::call::{Call, Fault, Reply, code_and_message};
use crate::node::ObservationServices;
use fullbore_control::{ConfigChange, Refusal};
use fullbore_wire::Frame;
use fullbore_wire::apis::alter_configs::{
    AlterConfigsRequest, AlterConfigsResource, AlterConfigsResourceResponse, AlterConfigsResponse, AlterableConfig,
};

pub async fn handle(call: &mut Call<'_>, services: &ObservationServices, reply: Reply) -> Result<Frame, Fault> {
    let request: AlterConfigsRequest = call.body(reply.version)?;
    let requested = request.resources.iter().map(|resource| Alteration {
        resource_type: resource.resource_type,
        name: &resource.resource_name,
        changes: replacement(&resource.configs),
    });
    let outcomes =
        alter(services, &call.control(&services.metadata.control), requested.collect(), request.validate_only).await;
    let responses =
        request.resources.iter().zip(outcomes).map(|(resource, outcome)| answer(resource, outcome)).collect();
    reply.frame::<AlterConfigsRequest>(&AlterConfigsResponse { responses, ..Default::default() })
}

/// Returns the changes that unset every key and then set those of `configs`.
fn replacement(configs: &[AlterableConfig]) -> Result<Vec<(String, ConfigChange)>, Refusal> {
    check_names(configs.iter().map(|config| config.name.as_str()).collect())?;
    let set = |config: &AlterableConfig| match &config.value {
        Some(value) => Ok((config.name.to_string(), ConfigChange::Set(value.to_string()))),
        None => Err(invalid(format!("Null value not supported for : {}", config.name))),
    };
    let mut changes = vec![(String::new(), ConfigChange::DeleteAll)];
    for config in configs {
        changes.push(set(config)?);
    }
    Ok(changes)
}

fn answer(resource: &AlterConfigsResource, outcome: Result<(), Refusal>) -> AlterConfigsResourceResponse {
    let (error_code, error_message) = code_and_message(outcome);
    AlterConfigsResourceResponse {
        error_code,
        error_message,
        resource_type: resource.resource_type,
        resource_name: resource.resource_name.clone(),
        ..Default::default()
    }
}
