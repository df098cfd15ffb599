//! DescribeClientQuotas 0-1. There are no quotas, so the result is always empty. Invalid filters are refused as in
//! Kafka (`ClientQuotasImage.describe`).

use super::call::{Call, Fault, Reply, code_and_message};
use fullbore_control::Refusal;
use fullbore_wire::apis::describe_client_quotas::{
    ComponentData, DescribeClientQuotasRequest, DescribeClientQuotasResponse,
};
use fullbore_wire::{ErrorCode, Frame};
use std::collections::HashSet;

/// Entity types of a filter. `IP` cannot be combined with the others.
const USER: &str = "user";
const CLIENT_ID: &str = "client-id";
const IP: &str = "ip";
/// Match types of a filter component.
const EXACT: i8 = 0;
const DEFAULT: i8 = 1;
const SPECIFIED: i8 = 2;

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeClientQuotasRequest = call.body(reply.version)?;
    let (error_code, error_message) = code_and_message(check(&request.components));
    let entries = (!error_code.is_err()).then(Vec::new);
    let response = DescribeClientQuotasResponse { error_code, error_message, entries, ..Default::default() };
    reply.frame::<DescribeClientQuotasRequest>(&response)
}

fn check(components: &[ComponentData]) -> Result<(), Refusal> {
    let invalid = |message: String| Err(Refusal::new(ErrorCode::INVALID_REQUEST, message));
    let mut types = HashSet::new();
    for component in components {
        let entity_type = component.entity_type.as_str();
        if entity_type.is_empty() {
            return invalid("Invalid empty entity type.".to_owned());
        }
        if !types.insert(entity_type) {
            return invalid(format!("Entity type {entity_type} cannot appear more than once in the filter."));
        }
        if ![USER, CLIENT_ID, IP].contains(&entity_type) {
            let message = format!("Unsupported entity type {entity_type}");
            return Err(Refusal::new(ErrorCode::UNSUPPORTED_VERSION, message));
        }
        let also_named = |way: &str| format!("Request specified MATCH_TYPE_{way}, but also specified a match string.");
        match (component.match_type, component.r#match.is_some()) {
            (EXACT, true) | (DEFAULT | SPECIFIED, false) => (),
            (EXACT, false) => {
                return invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.".to_owned());
            }
            (DEFAULT, true) => return invalid(also_named("DEFAULT")),
            (SPECIFIED, true) => return invalid(also_named("SPECIFIED")),
            (unknown, _) => return invalid(format!("Unknown match type {unknown}")),
        }
    }
    if types.contains(IP) && types.len() > 1 {
        let why = "IP filter component should not be used with user or clientId filter component.";
        return invalid(format!("Invalid entity filter component combination. {why}"));
    }
    Ok(())
}
