//! A connection that stays open between requests.
//!
//! Invariant: a request is sent a second time only if the broker has closed a connection that served earlier requests,
//! and if the request is idempotent.

use super::connection::Connection;
use crate::error::ClientError;
use fullbore_wire::api::{ApiKey, Request};
use std::collections::VecDeque;

/// An open connection, or none. Methods get a function that connects instead of an address, because the broker's
/// address may have changed since the last request.
#[derive(Default)]
pub(crate) struct KeptConnection(Option<Connection>);

impl KeptConnection {
    /// Returns the connection. Calls `connect` first if there is none.
    pub(crate) fn get(
        &mut self,
        connect: impl FnOnce() -> Result<Connection, ClientError>,
    ) -> Result<&mut Connection, ClientError> {
        if self.0.is_none() {
            self.0 = Some(connect()?);
        }
        Ok(self.0.as_mut().expect("just connected"))
    }

    /// Returns the address of the connection, if there is one.
    pub(crate) fn address(&self) -> Option<&str> {
        self.0.as_ref().map(Connection::address)
    }

    /// Returns true if there is a connection.
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Removes and returns the connection, if there is one.
    pub(crate) fn take(&mut self) -> Option<Connection> {
        self.0.take()
    }

    /// Replaces the connection.
    pub(crate) fn keep(&mut self, connection: Connection) {
        self.0 = Some(connection);
    }

    /// Sends a request in version `max` or an older one and waits for its response. If the broker has closed the kept
    /// connection (`connections.max.idle.ms`), an idempotent request is sent once more over a new one.
    pub(crate) fn call<R: Request>(
        &mut self,
        request: &R,
        max: i16,
        mut connect: impl FnMut() -> Result<Connection, ClientError>,
    ) -> Result<R::Response, ClientError> {
        loop {
            let is_new = self.0.is_none();
            let answer = self.get(&mut connect)?.call_up_to(request, max);
            let Err(error) = answer else { return answer };
            // The connection is dropped. Otherwise a late response would be taken for the response to the next request.
            self.0 = None;
            if is_new || !error.is_closed() || !may_be_sent_twice(R::KEY) {
                return Err(error);
            }
        }
    }

    /// Sends requests, each paired with its weight. The total weight of the requests in flight is at most `weight_max`,
    /// and a heavier request is sent alone. Returns the responses in order. After an error sends no more, and also
    /// returns the error.
    pub(crate) fn call_each<R: Request>(
        &mut self,
        requests: impl IntoIterator<Item = (usize, R)>,
        max: i16,
        weight_max: usize,
        connect: impl FnOnce() -> Result<Connection, ClientError>,
    ) -> (Vec<R::Response>, Option<ClientError>) {
        let mut answers = Vec::new();
        let requested = self.get(connect).and_then(|connection| {
            let version = connection.version::<R>()?.min(max);
            let (mut due, mut weight_due) = (VecDeque::new(), 0);
            for (weight, request) in requests {
                while !due.is_empty() && weight_due + weight > weight_max {
                    answers.push(connection.receive::<R>(version)?.1);
                    weight_due -= due.pop_front().unwrap_or(0);
                }
                connection.send(&request, version)?;
                due.push_back(weight);
                weight_due += weight;
            }
            for _ in due {
                answers.push(connection.receive::<R>(version)?.1);
            }
            Ok(())
        });
        if requested.is_err() {
            // The connection is dropped. Otherwise responses that are still due would be taken for those to later
            // requests.
            self.0 = None;
        }
        (answers, requested.err())
    }
}

/// Returns true if requests of this API are idempotent, because they change nothing or set the same value again.
/// Returns false if a broker would refuse the second request of the API. Also returns false for JoinGroup and
/// SyncGroup. Another thread cancels these by ending their connection, and a second attempt would undo the
/// cancellation.
fn may_be_sent_twice(api: ApiKey) -> bool {
    use ApiKey::*;
    let reads = [
        Metadata,
        ListOffsets,
        FindCoordinator,
        OffsetFetch,
        ListGroups,
        DescribeGroups,
        ConsumerGroupDescribe,
        DescribeConfigs,
        ListConfigResources,
        DescribeTopicPartitions,
        DescribeLogDirs,
    ];
    api == OffsetCommit || reads.contains(&api)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::security::Security;
    use fullbore_wire::apis::join_group::JoinGroupRequest;
    use fullbore_wire::apis::metadata::MetadataRequest;
    use fullbore_wire::apis::offset_commit::OffsetCommitRequest;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    /// Returns the body of the next request, or `None` if the client closes the connection.
    fn request(socket: &mut TcpStream) -> Option<Vec<u8>> {
        let mut prefix = [0; 4];
        socket.read_exact(&mut prefix).ok()?;
        let mut body = vec![0; u32::from_be_bytes(prefix) as usize];
        socket.read_exact(&mut body).ok()?;
        Some(body)
    }

    /// Starts a broker that answers ApiVersions on each connection, sends the API key of the next request to the
    /// channel, and closes the connection.
    fn broker_that_closes() -> (String, mpsc::Receiver<i16>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("bound").to_string();
        let (reports, reported) = mpsc::channel();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let mut socket = socket.expect("a client");
                request(&mut socket).expect("ApiVersions");
                // The response in version 3: correlation id, no error, three APIs in version 8 only, no throttling, no
                // tags.
                let mut answer = vec![0, 0, 0, 0, 0, 0, 4];
                [3, 8, 11].iter().for_each(|key| answer.extend([0, *key, 0, 8, 0, 8, 0]));
                answer.extend([0; 5]);
                socket.write_all(&[&(answer.len() as u32).to_be_bytes(), &answer[..]].concat()).expect("it reads");
                let body = request(&mut socket).expect("a request");
                // An error only means that the test is over.
                let _ = reports.send(i16::from_be_bytes([body[0], body[1]]));
            }
        });
        (address, reported)
    }

    /// Sends a request over a new connection, or over one that has been used before and that the broker has closed.
    /// Returns the API keys of the requests that the broker received.
    fn sent<R: Request>(request: &R, was_kept: bool) -> Vec<i16> {
        let (address, reported) = broker_that_closes();
        let connect = || Connection::connect(&address, "test", &Security::default());
        let mut kept = KeptConnection::default();
        if was_kept {
            kept.get(connect).expect("it answers");
        }
        let error = kept.call(request, i16::MAX, connect).expect_err("closed");
        assert!(error.is_closed() && kept.0.is_none(), "{error}");
        reported.try_iter().collect()
    }

    #[test]
    fn an_idempotent_request_is_repeated_after_a_kept_connection_closed() {
        assert_eq!(sent(&MetadataRequest::default(), true), [3, 3]);
        assert_eq!(sent(&OffsetCommitRequest::default(), true), [8, 8]);
        assert_eq!(sent(&JoinGroupRequest::default(), true), [11]);
        assert_eq!(sent(&MetadataRequest::default(), false), [3]);
    }
}
