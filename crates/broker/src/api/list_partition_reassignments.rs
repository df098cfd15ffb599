//! ListPartitionReassignments 0. Partitions cannot move between brokers, so the list is always empty.

use super::call::{Call, Fault, Reply};
use fullbore_wire::Frame;
use fullbore_wire::apis::list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    call.body::<ListPartitionReassignmentsRequest>(reply.version)?;
    reply.frame::<ListPartitionReassignmentsRequest>(&ListPartitionReassignmentsResponse::default())
}
