//! ListPartitionReassignments 0: none, since there is one broker and a partition cannot be on its way to another.

use super::call::{Call, Fault, Reply};
use fullbore_wire::Frame;
use fullbore_wire::apis::list_partition_reassignments::{
    ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse,
};

pub fn handle(call: &mut Call<'_>, reply: Reply) -> Result<Frame, Fault> {
    call.body::<ListPartitionReassignmentsRequest>(reply.version)?;
    reply.frame::<ListPartitionReassignmentsRequest>(&ListPartitionReassignmentsResponse::default())
}
