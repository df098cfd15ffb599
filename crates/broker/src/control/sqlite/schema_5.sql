-- Version 5: groups and what they committed are in the topic __consumer_offsets.
DROP TABLE group_offsets;
DROP TABLE groups;
