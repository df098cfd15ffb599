//! JoinGroup 0-9: adds a member to a classic group. The rules are in `rules::group::classic`. The response waits for
//! the other members, which may take long.

use super::call::{Call, Fault, Reply};
use super::wide::is_large;
use crate::groups::Missing;
use crate::node::CoordinatorServices;
use fullbore_host::wide_work::WideWork;
use fullbore_rules::group::GroupAnswer;
use fullbore_rules::group::Joining;
use fullbore_wire::apis::join_group::{JoinGroupRequest, JoinGroupResponse};
use fullbore_wire::{ErrorCode, Frame, Text};
use std::net::{IpAddr, SocketAddr};

/// Maximum length of a string in a response, in bytes.
const TEXT_BYTES_MAX: usize = i16::MAX as usize;
/// First version whose response may have a null protocol name (KIP-559).
const NO_PROTOCOL_FROM: i16 = 7;

pub async fn handle(
    call: &mut Call<'_>,
    services: &CoordinatorServices,
    wide: &WideWork,
    reply: Reply,
) -> Result<Frame, Fault> {
    let request: JoinGroupRequest = call.body(reply.version)?;
    let mut response = join(call, services, &request, reply.version.number).await;
    if reply.version.number < NO_PROTOCOL_FROM {
        response.protocol_name.get_or_insert_default();
    }
    // The response to the group's leader contains the metadata of all members, and encoding copies these bytes. A large
    // response is encoded off the threads that serve connections, as for a wide request (`super::wide`).
    let bytes = response.members.iter().map(|member| member.member_id.len() + member.metadata.len()).sum();
    match is_large(bytes) {
        true => wide.drive(bytes, async { reply.frame::<JoinGroupRequest>(&response) }).await,
        false => reply.frame::<JoinGroupRequest>(&response),
    }
}

async fn join(
    call: &Call<'_>,
    services: &CoordinatorServices,
    request: &JoinGroupRequest,
    version: i16,
) -> JoinGroupResponse {
    if request.group_id.is_empty() {
        return refused(request, ErrorCode::INVALID_GROUP_ID);
    }
    let incoming: usize = request.protocols.iter().map(|protocol| protocol.metadata.len() + protocol.name.len()).sum();
    if !services.groups.has_room(incoming, !request.member_id.is_empty()) {
        return refused(request, ErrorCode::GROUP_MAX_SIZE_REACHED);
    }
    let client_id = call.header.client_id.as_deref().unwrap_or_default();
    let (new_member_id, missing) = match request.member_id.is_empty() {
        true => (new_member_id(request.group_instance_id.as_deref().unwrap_or(client_id)), Missing::Create),
        // A member that already has an id got it from an existing group. So if the group is missing, it is not created.
        false => (Text::default(), Missing::Refuse(ErrorCode::UNKNOWN_MEMBER_ID)),
    };
    let client_host = client_host(call.client.peer);
    let joining = Joining { request, version, client_id, client_host: &client_host, new_member_id: &new_member_id };
    let answer = services.groups.request(&request.group_id, missing, |group, ticket, now, effects| {
        // The image is read only now, under the group's lock. If it were read before the wait for the lock, another
        // request could meanwhile pass a newer image to the group. This join would then lack topics that the group
        // knows.
        let image = services.metadata.control.image();
        group.join(joining, &*image, ticket, now, effects);
    });
    match answer.await {
        GroupAnswer::Join(response) => *response,
        GroupAnswer::Refused(code) => refused(request, code),
        _ => unreachable!("a JoinGroup is answered with a generation"),
    }
}

fn refused(request: &JoinGroupRequest, error_code: ErrorCode) -> JoinGroupResponse {
    JoinGroupResponse { error_code, member_id: request.member_id.clone(), protocol_name: None, ..Default::default() }
}

/// Returns a member id in Kafka's form: `name` (the instance id or the client id), followed by a random UUID. `name` is
/// cut if the result would be too long for a response.
fn new_member_id(name: &str) -> Text {
    let unique = uuid::Uuid::new_v4().to_string();
    let name = &name[..name.floor_char_boundary(TEXT_BYTES_MAX - "-".len() - unique.len())];
    Text::from(format!("{name}-{unique}"))
}

/// Returns the address in the form in which Java prints an address without a host name.
pub(super) fn client_host(peer: SocketAddr) -> String {
    match peer.ip().to_canonical() {
        IpAddr::V4(ip) => format!("/{ip}"),
        IpAddr::V6(ip) => {
            let groups: Vec<String> = ip.segments().iter().map(|group| format!("{group:x}")).collect();
            format!("/{}", groups.join(":"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_javas_form() {
        let host = |address: &str| client_host(SocketAddr::new(address.parse().expect("an address"), 1));
        assert_eq!(host("127.0.0.1"), "/127.0.0.1");
        assert_eq!(host("::ffff:10.0.0.7"), "/10.0.0.7");
        assert_eq!(host("::1"), "/0:0:0:0:0:0:0:1");
    }
}
