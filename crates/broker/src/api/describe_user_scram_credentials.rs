//! DescribeUserScramCredentials 0. No user has credentials, so a user requested by name is not found, as in Kafka
//! (`ScramImage.describe`).

use super::call::{Call, Fault, Reply, words};
use fullbore_wire::apis::describe_user_scram_credentials::{
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, DescribeUserScramCredentialsResult,
};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::collections::BTreeMap;

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    let request: DescribeUserScramCredentialsRequest = call.body(reply.version)?;
    let mut times: BTreeMap<Text, usize> = BTreeMap::new();
    for user in request.users.unwrap_or_default() {
        *times.entry(user.name).or_default() += 1;
    }
    let results = times.into_iter().map(|(user, times)| not_found(user, times > 1)).collect();
    let response = DescribeUserScramCredentialsResponse { results, ..Default::default() };
    reply.frame::<DescribeUserScramCredentialsRequest>(&response)
}

fn not_found(user: Text, is_repeated: bool) -> DescribeUserScramCredentialsResult {
    let (error_code, why) = if is_repeated {
        let why = "Cannot describe SCRAM credentials for the same user twice in a single request";
        (ErrorCode::DUPLICATE_RESOURCE, why)
    } else {
        (ErrorCode::RESOURCE_NOT_FOUND, "Attempt to describe a user credential that does not exist")
    };
    let error_message = Some(words(format!("{why}: {user}")));
    DescribeUserScramCredentialsResult { user, error_code, error_message, ..Default::default() }
}
