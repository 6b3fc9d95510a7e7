-- What control packets tell of data packets: as iswitch/dissect/jobs.py

-- A book of what is known:
--   members: job of a pair; shapes: by switch and job; asked: by pair, job and request
--   requests: by who asks whom, job, request and action: what is unanswered
--   noted: the frames that it is from
local sure      -- of frames that were looked at one after another, each with its ToS
local guessed   -- of all that reads as sound control
local frames    -- by number: what was known when it came
local order     -- their numbers, in the order of their first look
local following -- the place in that order up to which all is sure

local function new_book() return { members = {}, shapes = {}, parts = {}, asked = {}, requests = {}, noted = {} } end

function iswitch.init()
    sure, guessed, frames, order, following = new_book(), new_book(), {}, {}, 1
end

local function pair_of(member, switch) return member .. " > " .. switch end

local function has_flag(v, bit) return math.floor(v.flags / bit) % 2 == 1 end

local function known_of(book, source, destination)
    for _, ends in ipairs({ { source, destination, true }, { destination, source, false } }) do
        local job = book.members[pair_of(ends[1], ends[2])]
        if job then
            local parts = ends[3] and book.parts[pair_of(ends[1], ends[2])]
            local shape = book.shapes[ends[2] .. "/" .. job]
            return { job = job, shape = shape, to_switch = ends[3], parts = parts }
        end
    end
end

local function towards_switch(book, source, destination, action, pinfo)
    if TO_SWITCH[action] then return true end
    local known = known_of(book, source, destination)
    if known then return known.to_switch end
    local to, from = is_switch_port(pinfo.dst_port), is_switch_port(pinfo.src_port)
    if to ~= from then return to end
end

local function shape_of(v)
    if v.dtype + v.op + v.mode + v.E + v.last + v.segments == 0 then return nil end
    local size = ITEMSIZE[v.dtype]
    return {
        dtype = v.dtype, segments = v.segments, packet = SEG_SIZE + v.E * size,
        tail = SEG_SIZE + v.last * size, asynchronous = v.mode == 1,
    }
end

local function learn(book, source, destination, v, pinfo)
    local members, shapes, asked = book.members, book.shapes, book.asked
    local to_switch = towards_switch(book, source, destination, v.action, pinfo)
    if to_switch == nil then return end
    local switch = to_switch and destination or source
    local pair = to_switch and pair_of(source, destination) or pair_of(destination, source)
    local where, key = switch .. "/" .. v.job, pair .. "/" .. v.job .. "/" .. v.request
    if v.action == ACTION.JOIN then
        local shape = shape_of(v)
        asked[key] = shape
        book.parts[pair] = has_flag(v, PARTS) or nil
        members[pair] = members[pair] or v.job
        shapes[where] = shapes[where] or shape
    elseif v.action == ACTION.ACK and v["ack.action"] == ACTION.JOIN then
        local shape = asked[key]
        asked[key] = nil
        if v.status == 0 and shape then
            members[pair], shapes[where] = v.job, shape
        end
    else
        members[pair] = members[pair] or v.job
    end
end

local function link(book, frame, source, destination, v, pinfo)
    local requests = book.requests
    local is_ack = v.action == ACTION.ACK
    local from, to = source, destination
    if is_ack then from, to = destination, source end
    local action = is_ack and v["ack.action"] or v.action
    local key = string.format("%s>%s %d %d %d", from, to, v.job, v.request, action)
    local open = requests[key]
    if not is_ack then
        if open and not open.answered then
            frame.repeat_of = open[1]
        else
            open = {}
            requests[key] = open
        end
        table.insert(open, pinfo.number)
        open.last, open.time = pinfo.number, pinfo.rel_ts
    elseif open then
        frame.request_in, frame.ack_time = open.last, pinfo.rel_ts - open.time
        for _, number in ipairs(open) do
            frames[number].response_in = frames[number].response_in or pinfo.number
        end
        open.answered = true
    else
        frame.unmatched = true
    end
end

local function note_in(book, frame, source, destination, v, pinfo)  -- once
    if book.noted[pinfo.number] then return end
    book.noted[pinfo.number] = true
    learn(book, source, destination, v, pinfo)
    link(book, frame, source, destination, v, pinfo)
    local known = known_of(book, source, destination)
    frame.to_switch = known and known.to_switch
end

local function forget_links(frame)  -- but who answers it: that comes later
    frame.request_in, frame.ack_time, frame.repeat_of, frame.unmatched = nil, nil, nil, nil
end

local function note(frame, source, destination, v, pinfo)  -- however often it is looked at
    note_in(guessed, frame, source, destination, v, pinfo)
    if frame.sure and not sure.noted[pinfo.number] then
        forget_links(frame)
        note_in(sure, frame, source, destination, v, pinfo)
    end
end
