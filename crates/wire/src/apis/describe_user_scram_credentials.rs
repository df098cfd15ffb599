//! DescribeUserScramCredentials, key 50 (DescribeUserScramCredentialsRequest.json,
//! DescribeUserScramCredentialsResponse.json).
//!
//! Introduced by KIP-554. Flexible from version 0 on.

use crate::message::message;
use crate::{ErrorCode, Text};

message! {
    /// Users whose credentials are wanted.
    pub struct DescribeUserScramCredentialsRequest {
        /// Each user; null or an empty list for all users.
        users: Option<Vec<UserName>>, 0..;
    }

    /// A user.
    pub struct UserName {
        /// The user's name.
        name: Text, 0..;
    }

    /// Credentials of each user, without their secrets.
    pub struct DescribeUserScramCredentialsResponse {
        /// Time for which the client must pause, in milliseconds.
        throttle_time_ms: i32, 0..;
        /// The error of the whole request, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each user.
        results: Vec<DescribeUserScramCredentialsResult>, 0..;
    }

    /// A user.
    pub struct DescribeUserScramCredentialsResult {
        /// The user's name.
        user: Text, 0..;
        /// The error, or 0.
        error_code: ErrorCode, 0..;
        /// Error message, or null.
        error_message: Option<Text>, 0..;
        /// Each credential.
        credential_infos: Vec<CredentialInfo>, 0..;
    }

    /// A credential.
    pub struct CredentialInfo {
        /// Mechanism: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512.
        mechanism: i8, 0..;
        /// Iterations of the credential's hash.
        iterations: i32, 0..;
    }
}
