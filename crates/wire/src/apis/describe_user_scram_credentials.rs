//! DescribeUserScramCredentials, key 50 (DescribeUserScramCredentialsRequest.json,
//! DescribeUserScramCredentialsResponse.json).
//!
//! KIP-554; 0 flexible.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Users whose credentials are wanted.
    pub struct DescribeUserScramCredentialsRequest {
        /// Each user; null or none for all of them.
        users: Option<Vec<UserName>>, 0..;
    }

    /// One user.
    pub struct UserName {
        /// The user's name.
        name: Text, 0..;
    }

    /// What the credentials are, not their secrets.
    pub struct DescribeUserScramCredentialsResponse {
        /// How long the client should pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 0..;
        /// Why, in words, or null.
        error_message: Option<Text>, 0..;
        /// Each user.
        results: Vec<DescribeUserScramCredentialsResult>, 0..;
    }

    /// One user.
    pub struct DescribeUserScramCredentialsResult {
        /// The user's name.
        user: Text, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Why, in words, or null.
        error_message: Option<Text>, 0..;
        /// Each credential.
        credential_infos: Vec<CredentialInfo>, 0..;
    }

    /// One credential.
    pub struct CredentialInfo {
        /// 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
        mechanism: i8, 0..;
        /// How often its hash is iterated.
        iterations: i32, 0..;
    }
}
