-- Reads documents. A key of another type reads as an empty document, which no program can write: so a reader reports
-- it, and does not take it for a document that does not exist.
--
-- KEYS  the documents
local found = {}
for number, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if type(value) == 'table' and value.err then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then
      return value
    end
    value = ''
  end
  found[number] = value
end
return found
