//! IncrementalAlterConfigs 0-1: changes settings of resources.

use super::alteration::{Alteration, alter, check_names, invalid};
use super::call::{Call, Fault, Reply, code_and_message};
use crate::node::ObservationServices;
use fullbore_control::{ConfigChange, Refusal};
use fullbore_wire::apis::incremental_alter_configs::{
    AlterConfigsResource, AlterConfigsResourceResponse, AlterableConfig, IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
};
use fullbore_wire::{Frame, Text};

pub async fn handle(call: &mut Call<'_>, services: &ObservationServices, reply: Reply) -> Result<Frame, Fault> {
    let request: IncrementalAlterConfigsRequest = call.body(reply.version)?;
    let requested = request.resources.iter().map(|resource| Alteration {
        resource_type: resource.resource_type,
        name: &resource.resource_name,
        changes: changes(&resource.configs),
    });
    let outcomes =
        alter(services, &call.control(&services.metadata.control), requested.collect(), request.validate_only).await;
    let answers = request.resources.iter().zip(outcomes);
    let responses = answers.map(|(resource, outcome)| answer(resource, outcome)).collect();
    reply.frame::<IncrementalAlterConfigsRequest>(&IncrementalAlterConfigsResponse { responses, ..Default::default() })
}

fn changes(configs: &[AlterableConfig]) -> Result<Vec<(String, ConfigChange)>, Refusal> {
    check_names(configs.iter().map(|config| config.name.as_str()).collect())?;
    configs.iter().map(|config| Ok((config.name.to_string(), change(config)?))).collect()
}

fn change(config: &AlterableConfig) -> Result<ConfigChange, Refusal> {
    let null = || invalid(format!("Null value not supported for : {}", config.name));
    let value = || config.value.as_ref().map(Text::to_string).ok_or_else(null);
    match config.config_operation {
        0 => Ok(ConfigChange::Set(value()?)),
        1 => Ok(ConfigChange::Delete),
        2 => Ok(ConfigChange::Append(value()?)),
        3 => Ok(ConfigChange::Subtract(value()?)),
        other => Err(invalid(format!("Unknown operation type {other} for config {}", config.name))),
    }
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
