-- Version 7: who registers an object draws its number, so that an older copy of the database gives none that the newest has given.
ALTER TABLE fullbore.diskless_objects ALTER COLUMN id DROP IDENTITY;
